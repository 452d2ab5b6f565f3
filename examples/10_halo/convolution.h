// A convolution over rows and over the places of a row, forward and backward, a row at a time. A row has `channels`
// planes of `width` places: a 2-D image has one place per column; a sequence, convolved in time only, has one per
// sequence of a batch, and side 1.
#pragma once

#include "rows.h"

struct Convolution {
  const char* name;
  int rows, width, channels, taps, side, dilation, stride;  // taps: of rows, `dilation` apart

  int floats() const { return width * channels; }
  int reach() const { return taps / 2 * dilation; }
  int out_rows() const { return (rows + stride - 1) / stride; }
  /// Rows of the result whose middle lies in a part of the input.
  Part results(Part in) const { return {(in.begin + stride - 1) / stride, (in.end + stride - 1) / stride}; }
  /// Rows of the input that rows of the result need.
  Part needs(Part out) const {
    if (out.size() == 0) return {};
    return common({out.begin * stride - reach(), (out.end - 1) * stride + reach() + 1}, {0, rows});
  }
  /// Rows of the result's gradient that rows of the input's need.
  Part needs_back(Part in) const {
    if (in.size() == 0) return {};
    const int first = std::max(in.begin - reach(), 0);
    return common({(first + stride - 1) / stride, (in.end - 1 + reach()) / stride + 1}, {0, out_rows()});
  }

  size_t weights() const { return static_cast<size_t>(taps * side * channels * channels); }
  static float weight(size_t i) { return static_cast<float>(i * 7 % 23) / 23.0f - 0.4f; }

  /// Each weight with the places that it joins: visit(weight, row of the input, places of it, places of the result, n).
  template <class Visit>
  void join(int out, int tap, Visit visit) const {
    const int row = out * stride + (tap - taps / 2) * dilation;
    if (row < 0 || row >= rows) return;
    for (int dx = 0; dx < side; ++dx) {
      const int shift = dx - side / 2, begin = std::max(0, -shift), count = width - std::abs(shift);
      for (int o = 0; o < channels; ++o)
        for (int c = 0; c < channels && count > 0; ++c)
          visit(static_cast<size_t>(((tap * side + dx) * channels + o) * channels + c), row, c * width + begin + shift,
                o * width + begin, count);
    }
  }

  void forward(const Rows& in, Rows& out, Part part) const {
    for (int j = part.begin; j < part.end; ++j) {
      std::fill_n(out.at(j), floats(), 0.0f);
      for (int tap = 0; tap < taps; ++tap)
        join(j, tap, [&](size_t w, int row, int from, int to, int count) {
          const float* x = in.at(row) + from;
          float* y = out.at(j) + to;
          for (int i = 0; i < count; ++i) y[i] += weight(w) * x[i];
        });
    }
  }

  void back_input(const Rows& out, Rows& in, Part part) const {
    for (int row = part.begin; row < part.end; ++row) {
      std::fill_n(in.at(row), floats(), 0.0f);
      for (int tap = 0; tap < taps; ++tap) {
        const int middle = row - (tap - taps / 2) * dilation, j = middle / stride;
        if (middle < 0 || middle % stride != 0 || j >= out_rows()) continue;
        join(j, tap, [&](size_t w, int, int from, int to, int count) {
          const float* y = out.at(j) + to;
          float* x = in.at(row) + from;
          for (int i = 0; i < count; ++i) x[i] += weight(w) * y[i];
        });
      }
    }
  }

  /// Adds what rows of the result have to say.
  void back_weights(const Rows& in, const Rows& out, Part part, std::vector<double>& gradient) const {
    for (int j = part.begin; j < part.end; ++j)
      for (int tap = 0; tap < taps; ++tap)
        join(j, tap, [&](size_t w, int row, int from, int to, int count) {
          float sum = 0;
          for (int i = 0; i < count; ++i) sum += in.at(row)[from + i] * out.at(j)[to + i];
          gradient[w] += static_cast<double>(sum);
        });
  }
};
