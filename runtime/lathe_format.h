/* The bytes of model.lathe, as FORMAT.md specifies them. Shared by the writer (compiler/emit.c) and the reader
 * (artifact_verify.c); nothing but fixed-size integers. */
#ifndef LATHE_FORMAT_H
#define LATHE_FORMAT_H

#include <stdint.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "artifacts are mapped as they are: only little-endian hosts are supported"
#endif

#define LATHE_FORMAT_MAGIC        "\x89LTH\r\n\x1a\n" /* 8 bytes, without the final zero */
#define LATHE_FORMAT_MAJOR        1
#define LATHE_FORMAT_MINOR        0
#define LATHE_FORMAT_MAX_SECTIONS 64
#define LATHE_FORMAT_ALIGN        64
#define LATHE_FORMAT_PAGE         4096
#define LATHE_FORMAT_CHUNK        ((uint64_t)4 << 20) /* of section checksums */
#define LATHE_FORMAT_MAX_CORES    4096
#define LATHE_FORMAT_ABSENT       UINT32_MAX /* operand */

struct lathe_fmt_prefix {
    uint8_t magic[8];
    uint16_t major, minor;
    uint32_t header_size;
    uint64_t file_size;
    uint32_t section_count;
    uint32_t packings;
    uint64_t cpu_needed;
    uint64_t reserved[2];
    uint64_t checksum;
};

enum lathe_section_kind {
    LATHE_SECTION_MANIFEST = 1,
    LATHE_SECTION_PLAN = 2,
    LATHE_SECTION_WEIGHTS = 3,
    LATHE_SECTION_REPORT = 4,
    LATHE_SECTION_GRAPH = 5,
    LATHE_SECTION_KNOWN_ANSWER = 6,
    LATHE_SECTION_BUCKETS = 7,
    LATHE_SECTION_KINDS = 8, /* one past the last known */
};
enum lathe_section_codec { LATHE_CODEC_RAW = 0, LATHE_CODEC_ZSTD = 1 };
#define LATHE_SECTION_REQUIRED 1u

struct lathe_fmt_section {
    uint32_t kind;
    uint16_t codec, flags;
    uint64_t offset, stored_size, raw_size, checksum, reserved;
};

struct lathe_fmt_manifest {
    uint32_t input_count, output_count, label_count, string_bytes;
    int64_t max_batch, max_seq;
    uint32_t target_name, writer;
    uint64_t target_features;
    uint8_t source_sha256[32];
    uint32_t placement, cores;
    uint64_t core_memory;
    uint64_t reserved[4];
};

#define LATHE_PORT_OPTIONAL  1u
#define LATHE_PORT_PER_TOKEN 2u
enum lathe_port_default { LATHE_DEFAULT_NONE = 0, LATHE_DEFAULT_ZEROS = 1, LATHE_DEFAULT_POSITIONS = 2 };

struct lathe_fmt_port {
    uint32_t name, value;
    uint8_t dtype, rank;
    uint16_t flags;
    uint32_t default_kind;
    int64_t id_limit;
    uint32_t dims[8];
    uint32_t dim_names[8];
    uint64_t reserved;
};

struct lathe_fmt_plan {
    uint32_t symbol_count, dim_count, value_count, step_count, operand_count, attr_count, int_count, string_bytes;
    uint32_t prologue_steps, reserved0;
    uint64_t arena_bytes, alive_bytes;
    uint64_t reserved[5];
};

enum lathe_symbol_source { LATHE_SYMBOL_INPUT = 0, LATHE_SYMBOL_ROWS = 1 };
enum lathe_symbol_role { LATHE_ROLE_NONE = 0, LATHE_ROLE_BATCH = 1, LATHE_ROLE_SEQUENCE = 2, LATHE_ROLE_ROWS = 3 };

struct lathe_fmt_symbol {
    uint32_t name, source, index, axis;
    int64_t min, max;
    uint32_t role, reserved;
};

enum lathe_dim_op {
    LATHE_DIM_CONST = 0,
    LATHE_DIM_SYMBOL = 1,
    LATHE_DIM_ADD = 2,
    LATHE_DIM_SUB = 3,
    LATHE_DIM_MUL = 4,
    LATHE_DIM_FLOORDIV = 5,
    LATHE_DIM_MOD = 6,
    LATHE_DIM_MIN = 7,
    LATHE_DIM_MAX = 8,
};

struct lathe_fmt_dim {
    uint32_t op, a, b, reserved;
    int64_t constant;
};

enum lathe_value_place { LATHE_PLACE_INPUT = 0, LATHE_PLACE_CONSTANT = 1, LATHE_PLACE_ARENA = 2 };

struct lathe_fmt_value {
    uint8_t dtype, rank, place, packing;
    uint32_t index;
    uint64_t offset, bytes;
    uint32_t dims[8];
    uint32_t name, reserved;
};

#define LATHE_STEP_HOST 1u /* not an operator of the target's device */
struct lathe_fmt_step {
    uint16_t op, flags; /* LATHE_STEP_HOST */
    uint16_t n_in, n_out;
    uint32_t first_operand, first_attr, n_attrs, name, origin, cost;
};

struct lathe_fmt_attr {
    uint32_t key, type;
    union {
        int64_t i;
        double f;
    };
    uint32_t first, count;
};

#define LATHE_BUCKETS_PAD_LENGTH 1u
#define LATHE_BUCKETS_ZERO_ROWS  2u
#define LATHE_BUCKETS_WHOLE      4u
enum lathe_axis { LATHE_AXIS_FIXED = 0, LATHE_AXIS_BATCH = 1, LATHE_AXIS_SEQ = 2 };
enum lathe_pad_kind { LATHE_PAD_VALUE = 0, LATHE_PAD_POSITIONS = 1, LATHE_PAD_READ = 2 };

struct lathe_fmt_buckets {
    uint32_t count, flags, mask, reserved0;
    uint64_t reserved[2];
};

struct lathe_fmt_bucket {
    int64_t batch, seq;
};

struct lathe_fmt_bucket_port {
    uint8_t axes[8];
    uint32_t pad_kind, mask_of;
    int64_t pad;
    uint64_t reserved;
};

struct lathe_fmt_answer {
    uint32_t input_count, output_count;
    uint64_t reserved;
};

struct lathe_fmt_answer_tensor {
    uint32_t port;
    uint8_t dtype, rank;
    uint16_t reserved0;
    int64_t dims[8];
    uint64_t offset, bytes, reserved1;
};

_Static_assert(sizeof(struct lathe_fmt_prefix) == 64, "prefix");
_Static_assert(sizeof(struct lathe_fmt_section) == 48, "section");
_Static_assert(sizeof(struct lathe_fmt_manifest) == 128, "manifest");
_Static_assert(sizeof(struct lathe_fmt_port) == 96, "port");
_Static_assert(sizeof(struct lathe_fmt_plan) == 96, "plan");
_Static_assert(sizeof(struct lathe_fmt_symbol) == 40, "symbol");
_Static_assert(sizeof(struct lathe_fmt_dim) == 24, "dim");
_Static_assert(sizeof(struct lathe_fmt_value) == 64, "value");
_Static_assert(sizeof(struct lathe_fmt_step) == 32, "step");
_Static_assert(sizeof(struct lathe_fmt_attr) == 24, "attr");
_Static_assert(sizeof(struct lathe_fmt_buckets) == 32, "buckets");
_Static_assert(sizeof(struct lathe_fmt_bucket) == 16, "bucket");
_Static_assert(sizeof(struct lathe_fmt_bucket_port) == 32, "bucket port");
_Static_assert(sizeof(struct lathe_fmt_answer_tensor) == 96, "answer tensor");
#endif
