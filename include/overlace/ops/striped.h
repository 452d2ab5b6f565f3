// Matrices whose blocks of rows lie in the memory of their owners, so that a kernel that only stores its output sends
// it while it computes, without knowing about ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "overlace/channel.h"
#include "overlace/symmetric.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// What a StripedMatrix is like, equal on all ranks.
struct StripedSpec {
  int64_t blocks = 0;  // blocks of rows, each with one owner; 0: one for each rank
  int64_t rows = 0;    // rows of a block
  int64_t cols = 0;
  DType dtype = DType::bf16;
  bool is_batched = false;      // blocks begin at page edges, whatever they take; else all are one matrix
  std::vector<int> owners{};    // ranks, one for each block; empty: as many for each rank, in rank order
  std::vector<int64_t> used{};  // rows of each block, its first ones, that are results; empty: all

  friend bool operator==(const StripedSpec&, const StripedSpec&) = default;
};

/// On every rank a matrix, or a batch of them, that any kernel may write, two in turn. Block b of the matrix of each
/// rank lies in the memory of owner b (SymmetricHeap::stripe). Edges of owners are edges of pages, 2 MiB on GPUs and
/// 4 KiB on CPU ranks: rows of a matrix are apart by `pitch` elements, as few as that allows, blocks of a batch by
/// whole pages.
///
/// A call takes what all ranks have stored into out() before it, in stream order, and turns to the other matrix. One
/// meeting of the ranks is in it; whoever stores into the other matrix then does so behind all that was read there the
/// call before. From the first captured call on the turn stays, as a replay would not see it, and a second meeting ends
/// each call instead. Calls are in one order on all ranks, as is whether they are captured; stores are made on the
/// channel's stream, or in an order with it.
class StripedMatrix {
 public:
  /// Collective of all ranks, outside captures, with the runtime's deadline. `channel` is one of the world. Throws on
  /// all ranks InvalidArgument (field, value got, value wanted), PlanMismatch where ranks differ, with both;
  /// Unsupported where blocks cannot end at page edges without more than twice the memory, more than 16 ranks of GPUs,
  /// heaps of cudaIpc, ranks of other hosts; OutOfMemory, `capture`.
  static StripedMatrix open(Channel& channel, const StripedSpec& spec, const char* name = "striped");
  StripedMatrix(StripedMatrix&&) noexcept;
  StripedMatrix& operator=(StripedMatrix&&) noexcept;
  /// Frees nothing: what was not closed ends with the runtime.
  ~StripedMatrix();
  /// Unmaps both matrices when all ranks have called this. Collective; no kernel, and no graph, uses them any more.
  void close();

  const StripedSpec& spec() const;
  int64_t pitch() const;
  /// Rows of a result of this rank: what its blocks use.
  int64_t owned_rows() const;
  /// Which of the two matrices is to be written, 0 or 1.
  int turn() const;
  /// The matrix to be written (blocks x rows, cols), or the batch (blocks, rows, cols).
  TensorView out() const;
  /// The range of addresses of matrix `turn`, and what lies where.
  const StripedRange& range(int turn) const;
  /// Throws InvalidArgument, with both ranges of addresses, where `input` has memory of these matrices: a product reads
  /// what it writes.
  void check_input(const char* name, const TensorView& input) const;

  /// `out` (owned_rows, cols) = sum over ranks, in their order, of the used rows of this rank's blocks; dtype of the
  /// matrix, or fp32 where that has 16 bits; summed in fp32 (fp64 for fp64). Collective, in stream order, done on
  /// return on CPU ranks, capturable. Throws InvalidArgument; on all ranks in the first call of its kind.
  void reduce_scatter(const TensorView& out);
  /// `out` (ranks x owned_rows, cols): the used rows of this rank's blocks as each rank stored them, in rank order.
  /// Otherwise as reduce_scatter.
  void all_to_all(const TensorView& out);

 private:
  struct State;
  explicit StripedMatrix(std::unique_ptr<State> state);
  State& opened(const char* call) const;
  std::unique_ptr<State> state_;
};

#pragma GCC visibility pop

}  // namespace overlace::ops
