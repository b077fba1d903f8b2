/* OpenBLAS as the yardstick of a processor's speed. It is loaded where it is installed;
   nothing is linked. */
#ifndef SHOAL_LAB_BLAS_H
#define SHOAL_LAB_BLAS_H

/* Operations per second of OpenBLAS's sgemm on matrices of 1024 x 1024; 0 where OpenBLAS
   is not installed, memory is short or the result is wrong. The number of threads of
   OpenBLAS, which belongs to the process, is afterwards what it was before. */
double blas_sgemm_rate(int threads);

#endif
