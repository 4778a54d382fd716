#include <owlet.bpf.h>

static __noinline __u64 square(__u64 n)
{
	return n * n;
}

static __noinline __u64 sum(__u64 a, __u64 b)
{
	return square(a) + square(b);
}

SEC("entry")
int calls(struct owlet_ctx *ctx)
{
	return sum(ctx->arg[0], ctx->arg[1]) & 0x7fffffff;
}

/* A loop with a bound that the verifier can see. */
SEC("entry")
int loops(struct owlet_ctx *ctx)
{
	__u64 n = ctx->arg[0], sum = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 50; i++) {
		sum += n ^ i;
		barrier_var(i);
	}
	return sum & 0xffff;
}
