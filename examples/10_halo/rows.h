// Rows that are dealt to the ranks, each with room for rows of others.
#pragma once

#include <algorithm>
#include <vector>

/// Rows [begin, end).
struct Part {
  int begin = 0, end = 0;
  int size() const { return std::max(end - begin, 0); }
  bool has(Part other) const { return other.size() == 0 || (begin <= other.begin && other.end <= end); }
};
inline Part common(Part a, Part b) {
  const Part both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.size() > 0 ? both : Part{};
}
/// Both, and what lies between them.
inline Part around(Part a, Part b) {
  if (a.size() == 0 || b.size() == 0) return a.size() == 0 ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// The part of `rows` rows that belongs to a rank.
inline Part part_of(int rows, int rank, int size) { return {rows * rank / size, rows * (rank + 1) / size}; }

/// Rows of `mine` that need nothing but `owned`: needs(rows) are rows, too.
template <class Needs>
Part inside_of(Part mine, Part owned, Needs needs) {
  Part out = mine;
  while (out.begin < mine.end && !owned.has(needs({out.begin, out.begin + 1}))) ++out.begin;
  while (out.end > out.begin && !owned.has(needs({out.end - 1, out.end}))) --out.end;
  return out;
}

/// Rows of a part, one behind the other.
class Rows {
 public:
  Rows(Part part, int floats) : part_(part), floats_(floats), data_(static_cast<size_t>(part.size() * floats)) {}

  Part part() const { return part_; }
  int floats() const { return floats_; }
  float* at(int row) { return data_.data() + static_cast<size_t>(row - part_.begin) * static_cast<size_t>(floats_); }
  const float* at(int row) const { return const_cast<Rows*>(this)->at(row); }

  /// What all ranks begin with: other values in each place.
  void fill(Part part, int factor) {
    for (int row = part.begin; row < part.end; ++row)
      for (int i = 0; i < floats_; ++i) at(row)[i] = static_cast<float>((row * factor + i * 17) % 97) / 97.0f - 0.4f;
  }

 private:
  Part part_;
  int floats_;
  std::vector<float> data_;
};
