/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What a program for owlet-ebpf includes. libbpf's bpf_helpers.h works as well: names and numbers are
 * the kernel's. Compile with: clang -O2 -g -target bpf -c prog.bpf.c
 */
#ifndef OWLET_BPF_H
#define OWLET_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;

/* What a program is told about the call it runs at. Read-only. */
struct owlet_ctx {
	__u64 arg[4]; /* the first arguments, as words; 0 where there is none */
	__u64 ret;    /* at exit: the return value as a word */
	__u64 ip;     /* address of the function, or of its site */
	__u64 cookie; /* what the attachment was given */
};

/* Sections of programs: "entry", "exit", "session"; "entry/PATTERN" says which functions it is for. */
#define SEC(name) __attribute__((section(name), used))
#define __noinline __attribute__((noinline))
#define __always_inline inline __attribute__((always_inline))

/* Keeps the compiler from reasoning about a variable. In a loop that counts up to a constant, it keeps
 * `i < N` from becoming `i != N`, from which the verifier cannot prove an end.
 */
#define barrier_var(var) asm volatile("" : "+r"(var))

/* Maps. */
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2

/* Helpers. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static long (*bpf_probe_read)(void *dst, __u32 size, const void *from) = (void *)4;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static __u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_current_comm)(void *buf, __u32 size) = (void *)16;
static long (*bpf_probe_read_str)(void *dst, __u32 size, const void *from) = (void *)45;
static long (*bpf_probe_read_user)(void *dst, __u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *dst, __u32 size, const void *from) = (void *)113;
static long (*bpf_probe_read_user_str)(void *dst, __u32 size, const void *from) = (void *)114;
static long (*bpf_probe_read_kernel_str)(void *dst, __u32 size, const void *from) = (void *)115;
static long (*bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *)130;
static void *(*bpf_ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void (*bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)133;
static __u64 (*bpf_ringbuf_query)(void *ringbuf, __u64 flags) = (void *)134;
static __u64 (*bpf_get_func_ip)(void *ctx) = (void *)173;
static __u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;
static long (*bpf_get_func_arg)(void *ctx, __u32 n, __u64 *value) = (void *)183;
static long (*bpf_get_func_ret)(void *ctx, __u64 *value) = (void *)184;
static long (*bpf_get_func_arg_cnt)(void *ctx) = (void *)185;

/* Of sessions only; the kernel has bpf_session_is_return and bpf_session_cookie for it, which are no helpers.
 * The word is 0 at the entry of a call; its return finds there what the entry has left.
 */
static __u64 (*owlet_session_is_return)(void *ctx) = (void *)10001;
static __u64 (*owlet_session_get)(void *ctx) = (void *)10002;
static long (*owlet_session_set)(void *ctx, __u64 word) = (void *)10003;

#endif
