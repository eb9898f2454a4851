#pragma once
// Copies between arrays, on one device or across two.

#include <paceline/kernel.h>

namespace paceline::detail {

// to = source, broadcast to its shape and converted to its type. Throws InvalidArgument where the shapes do not fit or
// the engines differ.
void copy(const NDArray& source, const NDArray& to, int priority);

// One input, one output on the same device (for cpu:N any two of them).
Kernel copy_kernel();

// May the two have an element in common?
bool overlap(const NDArray& a, const NDArray& b);

// May writing `out` element by element change elements of `input` that are still to be read? True for two different
// views whose memory overlaps.
bool disturbs(const NDArray& out, const NDArray& input);

}  // namespace paceline::detail
