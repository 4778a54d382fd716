#include <owlet.bpf.h>

__u64 table[8];

SEC("entry")
int beyond(struct owlet_ctx *ctx)
{
	__u64 index = ctx->arg[0];

	if (index <= 8)
		table[index] += 1;
	return 0;
}
