#include <owlet.bpf.h>

SEC("entry")
int endless(struct owlet_ctx *ctx)
{
	__u64 n = ctx->arg[0], sum = 0;

#pragma clang loop unroll(disable)
	while (n != 1) {
		n = n & 1 ? 3 * n + 1 : n / 2;
		sum += 1;
		barrier_var(sum);
	}
	return sum & 0xff;
}
