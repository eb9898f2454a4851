#pragma once
// Functions for the host and for CUDA kernels. The only #ifdef about CUDA in the project.

#ifdef __CUDACC__
// Marks a function that runs on the host and in CUDA kernels.
#define PACELINE_HOST_DEVICE __host__ __device__
#else
#define PACELINE_HOST_DEVICE
#endif
