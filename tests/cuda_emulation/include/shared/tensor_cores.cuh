#pragma once
// In place of ops/shared/tensor_cores.cuh, whose contract it has: the lanes show each other their registers.

#include <paceline/dtype.h>

#include <array>
#include <bit>

namespace paceline {

// What all lanes of the warp pass.
template <class Value>
std::array<Value, 32> of_all_lanes(const Value& mine) {
  static_assert(sizeof(Value) <= ::cuda_emulation::kSlotBytes);
  const int thread = ::cuda_emulation::linear_thread(), first = thread - thread % 32;
  std::memcpy(::cuda_emulation::slot_of(thread), &mine, sizeof mine);
  __syncwarp();
  std::array<Value, 32> all;
  for (int lane = 0; lane < 32; ++lane)
    std::memcpy(&all[static_cast<std::size_t>(lane)], ::cuda_emulation::slot_of(first + lane), sizeof mine);
  __syncwarp();
  return all;
}

// Number `i` of the two in a register.
template <class T>
float element_of(unsigned pair, int i) {
  T value;
  value.bits = static_cast<std::uint16_t>(pair >> (16 * i));
  return value;
}

template <class T>
void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const auto as = of_all_lanes(std::to_array(a));
  const auto bs = of_all_lanes(std::to_array(b));
  const int lane = ::cuda_emulation::linear_thread() % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const auto a_lane = static_cast<std::size_t>(row % 8 * 4 + k % 8 / 2);
      const auto b_lane = static_cast<std::size_t>(column * 4 + k % 8 / 2);
      sums[i] += element_of<T>(as[a_lane][static_cast<std::size_t>(row / 8 + k / 8 * 2)], k % 2) *
                 element_of<T>(bs[b_lane][static_cast<std::size_t>(k / 8)], k % 2);
    }
  }
}

template <class T>
void read_rows(unsigned (&b)[2], const T* row) {
  const auto rows = of_all_lanes(row);
  const int lane = ::cuda_emulation::linear_thread() % 32;
  for (int i = 0; i < 2; ++i) {
    const auto first = static_cast<std::size_t>(lane % 4 * 2 + 8 * i);
    if (reinterpret_cast<std::uintptr_t>(rows[first]) % 16 != 0 ||
        reinterpret_cast<std::uintptr_t>(rows[first + 1]) % 16 != 0)
      ::cuda_emulation::fail("ldmatrix from an address that 16 does not divide");
    b[i] = rows[first][lane / 4].bits | static_cast<unsigned>(rows[first + 1][lane / 4].bits) << 16;
  }
}

}  // namespace paceline
