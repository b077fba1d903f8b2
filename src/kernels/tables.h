/* How a list of kernels becomes tables: attention's list (kernels/list.h) and the models'
 * (models/kernels/list.h) use the same mechanism. A list is a macro LIST(KERNEL) of rows
 * KERNEL(name, arguments).
 *
 *     LIST(KERNEL_TYPE)                      declares the type NAME_kernel of each
 *     struct { LIST(KERNEL_FIELD) }          a table: one pointer each
 *     = {LIST(KERNEL_ROW)}                   a table of the functions of these names
 *
 * There is one table per instruction set of this build. SHOAL_ISAS(ROW) lists those in
 * order of preference, worst first; ISA_scalar, ISA_avx2 and so on are their places. A
 * file table_SET.c is compiled with the flags of its set (cmake/Kernels.cmake). */
#ifndef SHOAL_KERNELS_TABLES_H
#define SHOAL_KERNELS_TABLES_H

#define KERNEL_TYPE(name, arguments) typedef void name##_kernel arguments;
#define KERNEL_FIELD(name, arguments) name##_kernel *name;
#define KERNEL_ROW(name, arguments) .name = name,

#ifdef SHOAL_HAVE_AVX2
#define AVX2_ISA(ROW) ROW(avx2)
#else
#define AVX2_ISA(ROW)
#endif
#ifdef SHOAL_HAVE_AVX512
#define AVX512_ISA(ROW) ROW(avx512)
#else
#define AVX512_ISA(ROW)
#endif
#ifdef SHOAL_HAVE_NEON
#define NEON_ISA(ROW) ROW(neon)
#else
#define NEON_ISA(ROW)
#endif
#define SHOAL_ISAS(ROW) ROW(scalar) AVX2_ISA(ROW) AVX512_ISA(ROW) NEON_ISA(ROW)

#define ISA_PLACE(set) ISA_##set,
enum { SHOAL_ISAS(ISA_PLACE) ISA_COUNT };
#undef ISA_PLACE

#endif
