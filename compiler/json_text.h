/* JSON by jansson, for text that comes from files. */
#ifndef LATHE_JSON_TEXT_H
#define LATHE_JSON_TEXT_H

#include "text.h"

#include <jansson.h>

/* A string; bytes that are not UTF-8 are shown as \xNN. NULL when memory runs out. */
json_t *lathe_json_string(const char *text);
/* A number, null for NaN and infinity, which JSON does not have. */
json_t *lathe_json_number(double value);
/* "batch, seq, 3" -> ["batch", "seq", 3] */
json_t *lathe_json_dims(const char *text);
/* "ai.onnx 17, com.microsoft 1" -> {"ai.onnx": 17, "com.microsoft": 1} */
json_t *lathe_json_opsets(const char *text);
/* "avx2 fma" -> ["avx2", "fma"] */
json_t *lathe_json_words(const char *text);
/* Appends the value (which it releases; NULL sets out->failed), indented and with a final newline, or all on one line.
 */
void lathe_json_append(struct lathe_text *out, json_t *value, bool compact);
#endif
