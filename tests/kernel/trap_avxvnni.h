/* Runs VPDPBUSD with 256-bit registers in its AVX-VNNI encoding on CPUs that have not got it: the invalid-instruction
 * signal's handler does what the instruction would, in the registers of the interrupted code. Slow; for tests alone.
 * Everything else of such a row is AVX2. */
#ifndef LATHE_TRAP_AVXVNNI_H
#define LATHE_TRAP_AVXVNNI_H

#include "kernel_test.h"

#include <stdbool.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
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

static void trap_handler(int signal_number, siginfo_t *info, void *user) {
    (void)info;
    ucontext_t *context = user;
    const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
    /* VEX.256.66.0F38.W0 50 /r */
    if (code[0] != 0xc4 || (code[1] & 31) != 2 || (code[2] & 0x87) != 0x05 || code[3] != 0x50) {
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned r = code[1] & 0x80 ? 0 : 8, x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
    unsigned mod = code[4] >> 6, reg = (code[4] >> 3 & 7) | r, rm = code[4] & 7, length = 5;
    uint8_t sum[32], first[32], second[32];
    trap_register(context, reg, sum, false);
    trap_register(context, ~code[2] >> 3 & 15, first, false);
    if (mod == 3) {
        trap_register(context, rm | b, second, false);
    } else {
        uint64_t address = 0;
        unsigned bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
        if (rm == 4) {
            unsigned sib = code[5], index = (sib >> 3 & 7) | x;
            length++;
            if ((sib & 7) == 5 && mod == 0)
                bytes = 4;
            else
                address = trap_general(context, (sib & 7) | b);
            if (index != 4)
                address += trap_general(context, index) << (sib >> 6);
        } else if (rm == 5 && mod == 0) {
            bytes = 4;
            address = (uint64_t)(code + 9); /* of the next instruction */
        } else {
            address = trap_general(context, rm | b);
        }
        address += (uint64_t)(int64_t)(bytes ? trap_displacement(code + length, bytes) : 0);
        length += bytes;
        memcpy(second, (const void *)address, 32);
    }
    for (int i = 0; i < 8; i++) {
        uint32_t lane;
        memcpy(&lane, sum + 4 * i, 4);
        for (int t = 0; t < 4; t++)
            lane += (uint32_t)(first[4 * i + t] * (int8_t)second[4 * i + t]);
        memcpy(sum + 4 * i, &lane, 4);
    }
    trap_register(context, reg, sum, true);
    context->uc_mcontext.gregs[REG_RIP] += length;
    trap_count++;
}

/* False where it cannot work. */
static inline bool trap_avxvnni(void) {
    unsigned a, c, d;
    if (!__get_cpuid_count(13, 2, &a, &trap_high_halves, &c, &d) || a < 256)
        return false;
    struct sigaction action = {.sa_sigaction = trap_handler, .sa_flags = SA_SIGINFO};
    return sigaction(SIGILL, &action, NULL) == 0;
}
#else
static unsigned long trap_count;
static inline bool trap_avxvnni(void) {
    return false;
}
#endif

/* Rows whose only foreign instruction is trapped run too, slowly, but not on an emulated CPU. To be asked anew in each
 * test: cmocka has a handler of its own. */
static inline bool test_traps(uint64_t bits) {
    uint64_t missing = bits & ~lathe_cpu_bits();
    return !test_quick && missing == LATHE_CPU_MASK(LATHE_CPU_AVX_VNNI) && trap_avxvnni();
}

/* Does a row run here, this way or natively? Says so. */
static inline bool test_runs(const char *name, uint64_t bits) {
    bool native = test_can_run(bits), slow = test_traps(bits);
    print_message("%s: %s\n", native ? "run" : slow ? "run by traps" : "skipped here", name);
    return native || slow;
}
#endif
