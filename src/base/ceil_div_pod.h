// Division of extents into pieces of a size, on hosts and in device code.
#pragma once

namespace overlace::base {

/// How many pieces of `piece` cover `extent`; both are 0 or more, `piece` is not 0.
template <class A, class B>
constexpr auto ceil_div(A extent, B piece) {
  return (extent + piece - 1) / piece;
}
/// The least multiple of `unit` that is no less than `value`.
template <class A, class B>
constexpr auto round_up(A value, B unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace overlace::base
