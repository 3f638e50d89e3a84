/* Attention of heads of up to 512 values: blocks of several z share a head, each with a part of its columns,
 * since a thread's registers hold the sums of 256. Belongs to attention.k.h. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_WIDE_H
#define MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_WIDE_H

KERNEL(attention_512, 256)
{
    attention_forward(&args.of, 4 * block_z(), 4);
}

KERNEL(attention_queries_512, 256)
{
    attention_queries(&args.of, 4 * block_z(), 4);
}

KERNEL(attention_keys_512, 256)
{
    attention_keys_half(&args.of, block_z() % 2, block_z() / 2 * 4, 4);
}

#endif
