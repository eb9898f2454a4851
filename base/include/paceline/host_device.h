#pragma once
// Marks a function that runs on the host and in CUDA kernels. The only #ifdef about CUDA in the project.

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
