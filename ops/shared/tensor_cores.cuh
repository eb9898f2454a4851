#pragma once
// Products of small tiles of float16 or bfloat16 by a warp, summed in float32: 16 x 16 times 16 x 8. All lanes must
// call these. Lane l holds two neighbours in each register; with r = l / 4 and c = 2 (l % 4):
//   a (16 x 16): rows r, r + 8, r, r + 8 at columns c, c, c + 8, c + 8.
//   b (16 x 8): rows c and c + 1, then c + 8 and c + 9, of column r.
//   sums (16 x 8): row r at columns c and c + 1, then row r + 8.

#include <paceline/dtype.h>

namespace paceline {

// sums += a b.
template <class T>
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<T, bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// b, 16 x 8, from rows in shared memory: lane l (of the first 16) gives where row l begins, at a multiple of 16 bytes.
template <class T>
__device__ inline void read_rows(unsigned (&b)[2], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(b[0]), "=r"(b[1])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace paceline
