/* The wire format of an ONNX file, walked before protobuf-c sees it: checks every length, limits nesting, and writes a
 * skeleton of the message in which the elements of tensors are replaced by their place in the mapped file and fields
 * that nobody reads are gone. So the memory of an import follows the number of nodes, not the size of the weights. */
#ifndef LATHE_ONNX_WIRE_H
#define LATHE_ONNX_WIRE_H

#include "lathe_status.h"

#include <stdbool.h>
#include <stdint.h>

#define LATHE_ONNX_MAX_NESTING  100        /* messages inside messages, protobuf's own default */
#define LATHE_ONNX_MAX_MESSAGES 16000000ul /* of one file */

/* *skeleton is the caller's, to be freed with free(). `name` is the file's, for messages. LATHE_INVALID with the byte
 * offset of the first fault. */
LATHE_NODISCARD enum lathe_status lathe_onnx_skeleton(const uint8_t *data, uint64_t size, const char *name,
                                                      uint8_t **skeleton, size_t *skeleton_size,
                                                      struct lathe_diag *diag);

/* One base-128 number at *p, before `end`; false when it is cut off or too long. */
bool lathe_wire_varint(const uint8_t **p, const uint8_t *end, uint64_t *value);
#endif
