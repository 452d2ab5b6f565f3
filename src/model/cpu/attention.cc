#include "src/model/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/half.h"
#include "src/exec/gemm.h"
#include "src/model/cpu/vector_math.h"

namespace overlace::model::cpu {
namespace {

using base::Status;

constexpr int64_t kBlockRows = 256;  // of a group's queries; scores of 4096 keys take 4 MiB

/// fp32 copies of the heads that share one KV head, and the work on them.
class Group {
 public:
  explicit Group(const AttentionArgs& args)
      : args_(args),
        dim_(args.heads.head_dim),
        length_(args.heads.sequence_length),
        queries_(args.heads.heads / args.heads.kv_heads),
        block_(std::clamp(kBlockRows / queries_, int64_t{1}, length_)),
        scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(dim_)))),
        k_(size(length_ * dim_)),
        v_(size(length_ * dim_)),
        q_(size(queries_ * block_ * dim_)),
        o_(q_.size()),
        scores_(size(queries_ * block_ * length_)),
        sums_(size(queries_ * block_)) {}

  Status run(int64_t sequence, int64_t kv_head) {
    first_token_ = sequence * length_;
    const HeadsView& h = args_.heads;
    for (int64_t t = 0; t < length_; ++t) {
      load(t, h.heads + kv_head, &k_[size(t * dim_)]);
      load(t, h.heads + h.kv_heads + kv_head, &v_[size(t * dim_)]);
    }
    for (int64_t begin = 0; begin < length_; begin += block_)
      OVERLACE_TRY(run_block(begin, std::min(block_, length_ - begin), kv_head * queries_));
    return {};
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  const char* row(const TensorView& t, int64_t token) const {
    return static_cast<const char*>(t.data) + token * t.stride(0) * static_cast<int64_t>(dtype_bytes(t.dtype));
  }
  void load(int64_t token, int64_t head, float* out) const {
    const TensorView& qkv = args_.heads.qkv;
    const auto bytes = static_cast<int64_t>(dtype_bytes(qkv.dtype));
    base::convert_to_float(row(qkv, first_token_ + token) + head * dim_ * bytes, qkv.dtype, out, dim_);
  }

  /// Queries [begin, begin + rows) of all heads of the group, stacked (queries, rows).
  Status run_block(int64_t begin, int64_t rows, int64_t first_head) {
    const int64_t first_key = args_.window > 0 ? std::max(int64_t{0}, begin - args_.window + 1) : 0;
    const int64_t keys = begin + rows - first_key;
    const int64_t m = queries_ * rows;
    for (int64_t g = 0; g < queries_; ++g)
      for (int64_t i = 0; i < rows; ++i) {
        float* q = &q_[size((g * rows + i) * dim_)];
        load(begin + i, first_head + g, q);
        for (int64_t d = 0; d < dim_; ++d) q[d] *= scale_;
      }
    const auto fp32 = [](float* data, int64_t r, int64_t c) {
      return TensorView::contiguous(data, DType::fp32, {r, c});
    };
    const TensorView q = fp32(q_.data(), m, dim_), scores = fp32(scores_.data(), m, keys);
    const TensorView k = fp32(&k_[size(first_key * dim_)], keys, dim_),
                     v = fp32(&v_[size(first_key * dim_)], keys, dim_);
    OVERLACE_TRY(exec::cpu_gemm({.a = q, .b = k.transposed(), .c = scores, .bias = {}}));
    for (int64_t g = 0; g < queries_; ++g)
      for (int64_t i = 0; i < rows; ++i) softmax(g * rows + i, begin + i, first_key, keys);
    OVERLACE_TRY(exec::cpu_gemm({.a = scores, .b = v, .c = fp32(o_.data(), m, dim_), .bias = {}}));
    for (int64_t g = 0; g < queries_; ++g)
      for (int64_t i = 0; i < rows; ++i) store(g * rows + i, begin + i, first_head + g);
    return {};
  }

  /// Not normalised; the sum is kept for store(). Keys that the query does not see become 0.
  void softmax(int64_t r, int64_t query, int64_t first_key, int64_t keys) {
    float* s = &scores_[size(r * keys)];
    const int64_t seen_end = query + 1 - first_key;
    const int64_t seen_begin = args_.window > 0 ? std::max(int64_t{0}, query - args_.window + 1 - first_key) : 0;
    const float largest = math_.largest(s + seen_begin, seen_end - seen_begin);
    const double sum = math_.exp_sum(s + seen_begin, seen_end - seen_begin, largest);
    std::fill(s, s + seen_begin, 0.0f);
    std::fill(s + seen_end, s + keys, 0.0f);
    sums_[size(r)] = static_cast<float>(1 / sum);
  }

  void store(int64_t r, int64_t query, int64_t head) {
    float* o = &o_[size(r * dim_)];
    for (int64_t d = 0; d < dim_; ++d) o[d] *= sums_[size(r)];
    const auto bytes = static_cast<int64_t>(dtype_bytes(args_.out.dtype));
    base::convert_from_float(o, const_cast<char*>(row(args_.out, first_token_ + query)) + head * dim_ * bytes,
                             args_.out.dtype, dim_);
  }

  const AttentionArgs& args_;
  const VectorMath& math_ = vector_math();
  int64_t dim_, length_, queries_, block_, first_token_ = 0;
  float scale_;
  std::vector<float> k_, v_, q_, o_, scores_, sums_;
};

}  // namespace

Status attention(const AttentionArgs& args) {
  const int64_t tokens = args.heads.qkv.dim(0);
  if (tokens == 0) return {};
  Group group(args);
  for (int64_t s = 0; s < tokens / args.heads.sequence_length; ++s)
    for (int64_t h = 0; h < args.heads.kv_heads; ++h) OVERLACE_TRY(group.run(s, h));
  return {};
}

}  // namespace overlace::model::cpu
