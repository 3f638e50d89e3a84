// The smallest module: the kernels of flat.k.h alone. A card is called usable once it has run one of them (cards.c);
// a driver translates them in milliseconds, and all kernels in up to two minutes.
#define GPU_KERNELS
#include "engine/gpu/kernels/dialect.h"
#include "engine/gpu/kernels/flat.k.h"
