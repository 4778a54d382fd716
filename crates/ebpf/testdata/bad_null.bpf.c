#include <owlet.bpf.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, __u64);
} counts SEC(".maps");

SEC("entry")
int unchecked(struct owlet_ctx *ctx)
{
	__u64 key = ctx->arg[0];
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	*value += 1;
	return 0;
}
