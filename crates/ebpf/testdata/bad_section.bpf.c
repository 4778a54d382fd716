#include <owlet.bpf.h>

SEC("xdp")
int packet(struct owlet_ctx *ctx)
{
	return 2;
}
