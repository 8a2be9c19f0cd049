/* Runs rows on CPUs that lack some of their instructions: VPDPBUSD with 256-bit registers in its AVX-VNNI encoding, and
 * those of AMX for tiles of bytes and of bf16. The invalid-instruction signal's handler does what the instruction
 * would, in the registers of the interrupted code. Slow; for tests alone. Everything else of such a row the CPU must
 * have. */
#ifndef LATHE_TRAP_INSTRUCTIONS_H
#define LATHE_TRAP_INSTRUCTIONS_H

#include "kernel_test.h"

#include <stdbool.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static unsigned trap_high_halves; /* where the upper halves of the registers lie in the saved state */
static unsigned long trap_count;

static void trap_register(ucontext_t *context, unsigned number, uint8_t bytes[32], bool store) {
    uint8_t *state = (uint8_t *)context->uc_mcontext.fpregs, *low = state + 160 + 16 * number;
    uint8_t *high = state + trap_high_halves + 16 * number;
    if (store) {
        memcpy(low, bytes, 16);
        memcpy(high, bytes + 16, 16);
    } else {
        memcpy(bytes, low, 16);
        memcpy(bytes + 16, high, 16);
    }
}

static uint64_t trap_general(const ucontext_t *context, unsigned number) {
    static const int place[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)context->uc_mcontext.gregs[place[number]];
}

static int32_t trap_displacement(const uint8_t *at, unsigned bytes) {
    int32_t wide = 0;
    if (bytes == 1)
        return (int8_t)*at;
    memcpy(&wide, at, bytes);
    return wide;
}

/* The operand that follows an opcode with a VEX prefix: a register, or an address without its index, which tiles take
 * for a stride. */
struct trap_operand {
    const uint8_t *code; /* the instruction */
    unsigned mod, reg, rm, length;
    uint64_t address, index;
};

static struct trap_operand trap_operand(const ucontext_t *context, const uint8_t *code) {
    unsigned r = code[1] & 0x80 ? 0 : 8, x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
    struct trap_operand o = {
        .code = code, .mod = code[4] >> 6, .reg = (code[4] >> 3 & 7) | r, .rm = code[4] & 7, .length = 5};
    unsigned bytes = o.mod == 1 ? 1 : o.mod == 2 ? 4 : 0;
    if (o.mod == 3) {
        o.rm |= b;
        return o;
    }
    if (o.rm == 4) {
        unsigned sib = code[5], index = (sib >> 3 & 7) | x;
        o.length++;
        if ((sib & 7) == 5 && o.mod == 0)
            bytes = 4;
        else
            o.address = trap_general(context, (sib & 7) | b);
        if (index != 4)
            o.index = trap_general(context, index) << (sib >> 6);
    } else if (o.rm == 5 && o.mod == 0) {
        bytes = 4;
        o.address = (uint64_t)(code + 9); /* of the next instruction */
    } else {
        o.address = trap_general(context, o.rm | b);
    }
    o.address += (uint64_t)(int64_t)(bytes ? trap_displacement(code + o.length, bytes) : 0);
    o.length += bytes;
    return o;
}

/* VPDPBUSD: VEX.256.66.0F38.W0 50 /r */
static void trap_dot(ucontext_t *context, const struct trap_operand *o) {
    uint8_t sum[32], first[32], second[32];
    trap_register(context, o->reg, sum, false);
    trap_register(context, ~o->code[2] >> 3 & 15, first, false);
    if (o->mod == 3)
        trap_register(context, o->rm, second, false);
    else
        memcpy(second, (const void *)(o->address + o->index), 32);
    for (int i = 0; i < 8; i++) {
        uint32_t lane;
        memcpy(&lane, sum + 4 * i, 4);
        for (int t = 0; t < 4; t++)
            lane += (uint32_t)(first[4 * i + t] * (int8_t)second[4 * i + t]);
        memcpy(sum + 4 * i, &lane, 4);
    }
    trap_register(context, o->reg, sum, true);
}

/* ---- tiles, as the manual has them: a configuration of 64 bytes, 8 registers of 16 rows of 64 bytes. What the manual
 * makes a fault ends the test. */
struct trap_tiles {
    bool configured;
    unsigned rows[8], row_bytes[8];
    uint8_t data[8][16][64];
};
static _Thread_local struct trap_tiles trap_tiles;

static struct trap_tiles *trap_tile(unsigned number) {
    if (number > 7 || !trap_tiles.configured || !trap_tiles.rows[number])
        abort();
    return &trap_tiles;
}

static void trap_tile_config(const uint8_t *config) {
    memset(&trap_tiles, 0, sizeof trap_tiles);
    for (unsigned i = 1; i < 16; i++)
        if (config[0] > 1 || config[i])
            abort();
    trap_tiles.configured = config[0] == 1;
    for (unsigned i = 0; i < 16; i++) {
        unsigned bytes = config[16 + 2 * i] | (unsigned)config[17 + 2 * i] << 8, rows = config[48 + i];
        if (bytes > 64 || rows > 16 || !bytes != !rows || (i > 7 && rows))
            abort();
        if (i < 8) {
            trap_tiles.row_bytes[i] = bytes;
            trap_tiles.rows[i] = rows;
        }
    }
}

/* The rest of a row, and rows behind the last, become zero. */
static void trap_tile_move(const struct trap_operand *o, bool store) {
    struct trap_tiles *t = trap_tile(o->reg);
    if (!store)
        memset(t->data[o->reg], 0, sizeof t->data[o->reg]);
    for (unsigned r = 0; r < t->rows[o->reg]; r++) {
        uint8_t *memory = (uint8_t *)(o->address + r * o->index);
        if (store)
            memcpy(memory, t->data[o->reg][r], t->row_bytes[o->reg]);
        else
            memcpy(t->data[o->reg][r], memory, t->row_bytes[o->reg]);
    }
}

static float trap_bf16(const uint8_t *at) {
    uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Of bytes, those of the first tile unsigned and of the second signed or, `turned`, the other way; or of bf16. */
static void trap_tile_dot(const struct trap_operand *o, bool bytes, bool turned) {
    unsigned a = o->rm, b = ~o->code[2] >> 3 & 15;
    struct trap_tiles *t = trap_tile(o->reg);
    trap_tile(a);
    trap_tile(b);
    if (a == b || a == o->reg || b == o->reg || t->rows[a] != t->rows[o->reg] ||
        t->row_bytes[b] != t->row_bytes[o->reg] || t->row_bytes[a] != 4 * t->rows[b])
        abort();
    for (unsigned m = 0; m < t->rows[a]; m++)
        for (unsigned n = 0; n < t->row_bytes[b] / 4; n++) {
            uint32_t integer;
            float sum, even = 0, odd = 0;
            memcpy(&integer, &t->data[o->reg][m][4 * n], 4);
            memcpy(&sum, &t->data[o->reg][m][4 * n], 4);
            for (unsigned k = 0; k < t->rows[b]; k++) {
                const uint8_t *x = &t->data[a][m][4 * k], *w = &t->data[b][k][4 * n];
                for (unsigned i = 0; bytes && i < 4; i++)
                    integer += (uint32_t)(turned ? (int8_t)x[i] * w[i] : x[i] * (int8_t)w[i]);
                if (!bytes) {
                    even = fmaf(trap_bf16(x), trap_bf16(w), even);
                    odd = fmaf(trap_bf16(x + 2), trap_bf16(w + 2), odd);
                }
            }
            sum += even + odd;
            memcpy(&t->data[o->reg][m][4 * n], bytes ? (void *)&integer : (void *)&sum, 4);
        }
}

/* False: another instruction. */
static bool trap_tiles_instruction(const struct trap_operand *o) {
    unsigned prefix = o->code[2] & 3, operation = o->code[3] << 4 | prefix; /* prefix: none, 66, F3, F2 */
    switch (operation) {
    case 0x490:
        if (o->mod == 3)
            memset(&trap_tiles, 0, sizeof trap_tiles);
        else
            trap_tile_config((const uint8_t *)(o->address + o->index));
        return true;
    case 0x493:
        trap_tile(o->reg);
        memset(trap_tiles.data[o->reg], 0, sizeof trap_tiles.data[o->reg]);
        return o->mod == 3;
    case 0x4b3:
    case 0x4b2:
        trap_tile_move(o, prefix == 2);
        return o->rm == 4 && o->mod != 3;
    case 0x5e1:
    case 0x5e2:
    case 0x5c2:
        trap_tile_dot(o, o->code[3] == 0x5e, prefix == 2);
        return o->mod == 3;
    default:
        return false;
    }
}

static void trap_handler(int signal_number, siginfo_t *info, void *user) {
    (void)info;
    ucontext_t *context = user;
    const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
    bool known = code[0] == 0xc4 && (code[1] & 31) == 2 && (code[2] & 0x80) == 0; /* VEX, map 0F38, W0 */
    if (known) {
        struct trap_operand o = trap_operand(context, code);
        if ((code[2] & 7) == 5 && code[3] == 0x50)
            trap_dot(context, &o);
        else
            known = (code[2] & 4) == 0 && trap_tiles_instruction(&o);
        context->uc_mcontext.gregs[REG_RIP] += known ? o.length : 0;
    }
    if (!known)
        signal(signal_number, SIG_DFL);
    trap_count += known;
}

/* False where it cannot work. */
static inline bool trap_instructions(void) {
    unsigned a, c, d;
    if (!__get_cpuid_count(13, 2, &a, &trap_high_halves, &c, &d) || a < 256)
        return false;
    struct sigaction action = {.sa_sigaction = trap_handler, .sa_flags = SA_SIGINFO};
    return sigaction(SIGILL, &action, NULL) == 0;
}
#else
static unsigned long trap_count;
static inline bool trap_instructions(void) {
    return false;
}
#endif

/* Rows whose only foreign instructions are trapped run too, slowly, but not on an emulated CPU. To be asked anew in
 * each test: cmocka has a handler of its own. */
static inline bool test_traps(uint64_t bits) {
    uint64_t missing = bits & ~lathe_cpu_bits();
    uint64_t tiles =
        LATHE_CPU_MASK(LATHE_CPU_AMX_TILE) | LATHE_CPU_MASK(LATHE_CPU_AMX_INT8) | LATHE_CPU_MASK(LATHE_CPU_AMX_BF16);
    bool trapped = missing == LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI) || (missing && !(missing & ~tiles));
    return !test_quick && trapped && trap_instructions();
}

/* Does a row run here, this way or natively? Says so. */
static inline bool test_runs(const char *name, uint64_t bits) {
    bool native = test_can_run(bits), slow = test_traps(bits);
    print_message("%s: %s\n", native ? "run" : slow ? "run by traps" : "skipped here", name);
    return native || slow;
}
#endif
