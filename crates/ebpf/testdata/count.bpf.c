#include <owlet.bpf.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

__u64 total;
const volatile __u64 step = 3;
__u64 start = 100;

SEC("entry")
int count(struct owlet_ctx *ctx)
{
	__u32 key = ctx->arg[0];
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	if (!value)
		return 1;
	__sync_fetch_and_add(value, step);
	total += 1;
	start += 1;
	return 0;
}
