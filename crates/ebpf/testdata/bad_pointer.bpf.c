#include <owlet.bpf.h>

/* An argument is a number, whatever the function takes it for. */
SEC("entry")
int follows(struct owlet_ctx *ctx)
{
	return *(__u32 *)ctx->arg[0];
}
