// embedding_a2a on real GPUs: every family against the bits that its definition gives, modes, types, bounds, widths,
// bad bags, repeated and captured. With one GPU ranks share it (virtual ranks); the library's exchange needs a GPU for
// each.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "overlace/ops/embedding_a2a.h"
#include "src/base/format.h"
#include "src/spec/families/placement.h"
#include "src/spec/families/pool.h"
#include "src/spec/operators.h"
#include "tests/gpu/support/values.h"

namespace overlace::test {
namespace {

struct Problem {
  std::string mode = "sum", bounds = "error";
  DType dtype = DType::fp32, out = DType::fp32, index = DType::i64, offset = DType::i64;
  bool has_factors = false, has_nans = false, is_exact = false;
  int64_t batch = 61, dim = 64;
  std::vector<int64_t> row_offsets{};
};

/// Table 1 is cut by columns, table 2 serves two features; from four ranks on, some have no table. Slices of rank 0
/// begin where loads are wide if `dim` is a multiple of 8; on the last rank behind an odd number of elements.
std::string placement_of(int64_t dim, int ranks) {
  const int last = ranks - 1, middle = ranks / 2;
  return base::format(
      R"({{"tables":[{{"rows":501,"dim":{0}}},{{"rows":40,"dim":11}},{{"rows":9,"dim":3,"padding":2}}],"entries":9,)"
      R"("features":[{{"table":0,"rank":0,"column":11}},{{"table":1,"rank":{1},"first":3,"width":8,"column":3}},)"
      R"({{"table":1,"rank":0,"width":3,"column":0}},{{"table":2,"rank":{2},"column":{3}}},)"
      R"({{"table":0,"rank":{1},"column":{4}}},{{"table":2,"rank":{2},"column":{5}}}]}})",
      dim, last, middle, 11 + dim, 14 + dim, 14 + 2 * dim);
}
int64_t columns_of(int64_t dim) { return 17 + 2 * dim; }

uint64_t mixed(int64_t a, int64_t b, int64_t c, int64_t d) {
  uint64_t x = static_cast<uint64_t>(((a * 1009 + b) * 1013 + c) * 1019 + d) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 29);
}
int64_t drawn(int64_t a, int64_t b, int64_t c, int64_t d, int64_t below) {
  return static_cast<int64_t>((mixed(a, b, c, d) >> 11) % static_cast<uint64_t>(below));
}

/// Differs by table, row and column; sums of it are rounded, unless they are asked to be exact.
double element(const Problem& p, int64_t table, int64_t row, int64_t column) {
  if (p.is_exact) return static_cast<double>(drawn(table, row, column, 1, 9) - 4);
  if (p.has_nans && drawn(table, row, column, 3, 61) == 0) return NAN;
  return static_cast<double>(drawn(table, row, column, 1, 200001) - 100000) / 37777.0;
}
double factor_of(int64_t feature, int64_t sample, int64_t entry) {
  return static_cast<double>(drawn(feature, sample, entry, 5, 2001) - 1000) / 777.0;
}

constexpr int64_t kMostEntries = 29;

/// The bag of a feature and a sample in a call: a fifth is empty; with other bounds than `error` and `none` some
/// indices lie outside, far, too.
std::vector<int64_t> bag_of(const Problem& p, int64_t call, int64_t feature, int64_t sample, int64_t rows) {
  std::vector<int64_t> out(
      static_cast<size_t>(std::max<int64_t>(0, drawn(call, feature, sample, 7, kMostEntries + 8) - 7)));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto e = static_cast<int64_t>(i);
    out[i] = drawn(call, feature * 64 + e, sample, 11, rows);
    if (p.bounds == "error" || p.bounds == "none") continue;
    if (drawn(call, feature, sample * 64 + e, 13, 4) == 0) out[i] = drawn(feature, sample, e, 17, 4 * rows) - 2 * rows;
    if (drawn(call, feature, sample * 64 + e, 19, 50) == 0) out[i] = (int64_t{1} << 30) * (e % 2 == 0 ? 1 : -1);
  }
  return out;
}

int64_t row_of(const Problem& p, int64_t index, const spec::EmbeddingTable& table) {
  if (index == table.padding && index >= 0) return -1;
  if (index >= 0 && index < table.rows) return index;
  if (p.bounds == "clamp") return index < 0 ? 0 : table.rows - 1;
  return p.bounds == "zero_row" ? 0 : -1;
}

/// Added as the header says: in the order of the entries, fp32 or for fp64 fp64.
float add_product(float factor, float value, float sum) { return std::fmaf(factor, value, sum); }
double add_product(double factor, double value, double sum) {
  const volatile double product = factor * value;  // rounded
  return sum + product;
}

template <class Acc>
double pooled(const Problem& p, const std::vector<Acc>& values, const std::vector<Acc>& factors) {
  Acc sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (p.mode != "max") {
      sum = add_product(p.has_factors ? factors[i] : Acc{1}, values[i], sum);
    } else if (i == 0 || (sum == sum && !(values[i] <= sum))) {
      sum = values[i];
    }
  }
  if (p.mode == "mean" && !values.empty()) sum = sum / static_cast<Acc>(values.size());
  return static_cast<double>(sum);
}

double rounded(double value, DType dtype) {
  uint64_t room = 0;
  base::store_element(&room, dtype, 0, value);
  return base::load_element(&room, dtype, 0);
}

/// A vector in memory of the rank, and on the host.
struct Vector {
  std::vector<char> host;
  TensorView device, on_host;

  /// Room for `most` elements, allocated once: nobody allocates while peers wait.
  void make(GpuRank& gpu, DType type, int64_t most) {
    host.assign(static_cast<size_t>(most) * dtype_bytes(type) + 16, 0);
    device = TensorView::contiguous(gpu.device_array<char>(host.size()), type, {most});
    resize(most);
  }
  void resize(int64_t length) {
    device = TensorView::contiguous(device.data, device.dtype, {length});
    on_host = TensorView::contiguous(host.data(), device.dtype, {length});
  }
  void set(int64_t i, int64_t value) {
    if (device.dtype == DType::i64)
      reinterpret_cast<int64_t*>(host.data())[i] = value;
    else
      reinterpret_cast<int32_t*>(host.data())[i] = static_cast<int32_t>(value);
  }
  int64_t at(int64_t i) const {
    if (device.dtype == DType::i64) return reinterpret_cast<const int64_t*>(host.data())[i];
    return reinterpret_cast<const int32_t*>(host.data())[i];
  }
  void send(GpuRank& gpu) const { gpu.store(device.data, host.data(), host.size()); }
};

/// One rank's operands.
class Site {
 public:
  Site(GpuRank& gpu, Problem p) : gpu_(gpu), p_(std::move(p)) {
    placement_ = spec::read_placement(placement_of(p_.dim, gpu.size), gpu.size, columns_of(p_.dim)).value();
    spec::OpSpec op{.op = "embedding_a2a", .m = p_.batch, .ranks = gpu.size, .row_offsets = p_.row_offsets};
    off_ = spec::row_offsets(op);
    make_weights();
    const auto rows = off_[index(gpu.rank + 1)] - off_[index(gpu.rank)];
    out_ = made(gpu, rows, columns_of(p_.dim), p_.out, [](int64_t, int64_t) { return NAN; });
    const auto [begin, end] = placement_.features_of(gpu.rank);
    num_bags_ = static_cast<int64_t>(end - begin) * p_.batch;
    offsets_.make(gpu, p_.offset, num_bags_ + 1);
    indices_.make(gpu, p_.index, num_bags_ * kMostEntries);
    if (p_.has_factors) factors_.make(gpu, p_.dtype, num_bags_ * kMostEntries);
  }

  void make_bags(int64_t call) {
    call_ = call;
    const auto [begin, end] = placement_.features_of(gpu_.rank);
    std::vector<int64_t> all;
    std::vector<double> factors;
    for (size_t f = begin; f < end; ++f)
      for (int64_t sample = 0; sample < p_.batch; ++sample) {
        offsets_.set(static_cast<int64_t>(f - begin) * p_.batch + sample, std::ssize(all));
        const std::vector<int64_t> bag = bag_of(p_, call, static_cast<int64_t>(f), sample, table(f).rows);
        for (size_t i = 0; i < bag.size(); ++i)
          factors.push_back(factor_of(static_cast<int64_t>(f), sample, static_cast<int64_t>(i)));
        all.insert(all.end(), bag.begin(), bag.end());
      }
    offsets_.set(num_bags_, std::ssize(all));
    indices_.resize(std::ssize(all));
    for (size_t i = 0; i < all.size(); ++i) indices_.set(static_cast<int64_t>(i), all[i]);
    if (p_.has_factors) factors_.resize(std::ssize(all));
    for (size_t i = 0; p_.has_factors && i < all.size(); ++i)
      base::store_element(factors_.host.data(), p_.dtype, static_cast<int64_t>(i), factors[i]);
    send();
  }
  void send() {
    offsets_.send(gpu_);
    indices_.send(gpu_);
    if (p_.has_factors) factors_.send(gpu_);
  }

  spec::Schedule schedule(const std::string& family, int degree) {
    return spec::make_schedule(ops::op_spec(gpu_.channel, args()), family, degree);
  }
  void run(const spec::Schedule& schedule) { ops::run(gpu_.channel, args(), schedule); }
  std::string run_and_say(const spec::Schedule& schedule) {
    try {
      run(schedule);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
  void spoil() { ASSERT_EQ(cudaMemsetAsync(out_.data, 0x7f, bytes_of(out_), gpu_.stream), cudaSuccess); }

  /// An entry that is left out; feature -1: none.
  struct Bad {
    int64_t feature, sample, position;
  };
  void check(const std::string& what, const Bad& bad = {-1, 0, 0}) {
    std::vector<char> out(bytes_of(out_));
    gpu_.fetch(out.data(), out_.data, out.size());
    int64_t wrong = 0;
    std::string first;
    const int64_t begin = off_[index(gpu_.rank)];
    for (int64_t row = 0; row < out_.dim(0); ++row)
      for (size_t f = 0; f < placement_.features.size(); ++f) {
        const spec::EmbeddingFeature& feature = placement_.features[f];
        for (int64_t j = 0; j < feature.width; ++j) {
          const double want = wanted(f, begin + row, feature.first + j, bad);
          const double got = base::load_element(out.data(), p_.out, row * out_.dim(1) + feature.column + j);
          if (got == want || (std::isnan(got) && std::isnan(want))) continue;
          if (++wrong == 1)
            first = base::format("feature {} sample {} column {}: {}, wanted {}", f, begin + row, j, got, want);
        }
      }
    EXPECT_EQ(wrong, 0) << what << " rank " << gpu_.rank << ": " << first;
  }

  /// What CPU ranks say of these bags.
  std::string refusal() {
    const std::vector<TensorView> tensors = {weights_.on_host, indices_.on_host, offsets_.on_host,
                                             p_.has_factors ? factors_.on_host : TensorView{}};
    const std::string why =
        spec::check_bags(ops::op_spec(gpu_.channel, args()), gpu_.rank, tensors, /*reads_memory=*/true);
    return why.empty() ? "" : base::format("embedding_a2a: {}; rank {}", why, gpu_.rank);
  }
  /// Elements of the result that differ from what CPU ranks pool of the same operands, where this is the only rank.
  int64_t differences_from_cpu(const spec::Schedule& schedule) {
    const int64_t columns = out_.dim(1);
    std::vector<char> out(bytes_of(out_)), pooled(bytes_of(out_));
    gpu_.fetch(out.data(), out_.data, out.size());
    const std::vector<TensorView> tensors = {weights_.on_host, indices_.on_host, offsets_.on_host,
                                             p_.has_factors ? factors_.on_host : TensorView{}};
    const std::vector<std::vector<TensorView>> reads,
        writes = {{TensorView::contiguous(pooled.data(), p_.out, {p_.batch, columns})}};
    spec::pool_bags(
        {.schedule = schedule, .task = schedule.tasks[0], .reads = reads, .writes = writes, .tensors = tensors});
    int64_t differ = 0;
    for (int64_t row = 0; row < p_.batch; ++row) {
      int64_t local = 0;
      for (const spec::EmbeddingFeature& feature : placement_.features)
        for (int64_t j = 0; j < feature.width; ++j, ++local)
          differ += base::load_element(out.data(), p_.out, row * columns + feature.column + j) !=
                    base::load_element(pooled.data(), p_.out, row * columns + local);
    }
    return differ;
  }
  Vector& indices() { return indices_; }
  Vector& offsets() { return offsets_; }
  int64_t num_bags() const { return num_bags_; }
  const spec::Placement& placement() const { return placement_; }

 private:
  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  static size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }
  const spec::EmbeddingTable& table(size_t f) const { return placement_.tables[index(placement_.features[f].table)]; }

  ops::EmbeddingA2aArgs args() const {
    return {.weights = weights_.device,
            .indices = indices_.device,
            .offsets = offsets_.device,
            .per_sample_weights = p_.has_factors ? factors_.device : TensorView{},
            .out = out_,
            .batch = p_.batch,
            .placement = placement_of(p_.dim, gpu_.size),
            .mode = p_.mode,
            .bounds = p_.bounds,
            .row_offsets = p_.row_offsets};
  }

  void make_weights() {
    int64_t elements = 0;
    const std::vector<int64_t> slices = placement_.slices(gpu_.rank, &elements);
    weights_.make(gpu_, p_.dtype, elements);
    const auto [begin, end] = placement_.features_of(gpu_.rank);
    for (size_t f = begin; f < end; ++f) {
      const spec::EmbeddingFeature& feature = placement_.features[f];
      for (int64_t row = 0; row < table(f).rows; ++row)
        for (int64_t j = 0; j < feature.width; ++j)
          base::store_element(weights_.host.data(), p_.dtype, slices[f - begin] + row * feature.width + j,
                              element(p_, feature.table, row, feature.first + j));
    }
    weights_.send(gpu_);
  }

  double wanted(size_t f, int64_t sample, int64_t column, const Bad& bad) const {
    std::vector<double> values, factors;
    const std::vector<int64_t> bag = bag_of(p_, call_, static_cast<int64_t>(f), sample, table(f).rows);
    for (size_t i = 0; i < bag.size(); ++i) {
      const auto entry = static_cast<int64_t>(i);
      if (static_cast<int64_t>(f) == bad.feature && sample == bad.sample && entry == bad.position) continue;
      const int64_t row = row_of(p_, bag[i], table(f));
      if (row < 0) continue;
      values.push_back(rounded(element(p_, placement_.features[f].table, row, column), p_.dtype));
      factors.push_back(rounded(factor_of(static_cast<int64_t>(f), sample, entry), p_.dtype));
    }
    if (p_.dtype == DType::fp64) return pooled<double>(p_, values, factors);
    const double sum =
        pooled<float>(p_, {values.begin(), values.end()}, std::vector<float>(factors.begin(), factors.end()));
    return rounded(sum, p_.out);
  }

  GpuRank& gpu_;
  const Problem p_;
  spec::Placement placement_;
  std::vector<int64_t> off_;
  int64_t num_bags_ = 0, call_ = 0;
  Vector weights_, indices_, offsets_, factors_;
  TensorView out_;
};

struct Family {
  const char* name;
  int degree;
};
constexpr Family kOurs[] = {{"serial", 1}, {"hetero_unfused_1d", 1}, {"hetero_unfused_1d", 3}};
constexpr Family kSerial[] = {{"serial", 1}};
constexpr Family kLibrary[] = {{"library", 1}};

void check_problem(const Problem& p, int ranks, std::span<const Family> families, const GpuOptions& options = {}) {
  run_gpu_threads(
      ranks,
      [&](GpuRank& gpu) {
        Site site(gpu, p);
        for (const Family& family : families) {
          site.make_bags(1);
          const spec::Schedule schedule = site.schedule(family.name, family.degree);
          for (int64_t call = 1; call <= 3; ++call) {
            site.make_bags(call);
            site.spoil();
            site.run(schedule);
            site.check(base::format("{} {} {} {} -> {} D {} B {}", family.name, p.mode, p.bounds, dtype_name(p.dtype),
                                    dtype_name(p.out), p.dim, p.batch));
          }
        }
      },
      options);
}

int all_ranks() { return gpu_count() < 4 ? 2 : 4; }

TEST(GpuEmbedding, GivesTheBitsOfItsDefinitionInEveryType) {
  OVERLACE_NEED_GPUS(1);
  for (const auto& [in, out] :
       {std::pair(DType::fp32, DType::fp32), std::pair(DType::bf16, DType::bf16), std::pair(DType::bf16, DType::fp32),
        std::pair(DType::fp16, DType::fp16), std::pair(DType::fp16, DType::fp32), std::pair(DType::fp64, DType::fp64)})
    for (const char* mode : {"sum", "mean", "max"}) {
      Problem p{.mode = mode, .dtype = in, .out = out};
      p.index = out == DType::fp32 ? DType::i32 : DType::i64;
      p.offset = in == out ? DType::i64 : DType::i32;
      check_problem(p, all_ranks(), kOurs);
    }
}

TEST(GpuEmbedding, TakesFactorsAndKeepsNans) {
  OVERLACE_NEED_GPUS(1);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::fp64})
    check_problem({.dtype = dtype, .out = dtype, .has_factors = true}, all_ranks(), kOurs);
  for (const char* mode : {"sum", "max"})
    check_problem({.mode = mode, .has_nans = true, .dim = 33}, all_ranks(), kSerial);
}

TEST(GpuEmbedding, TakesRowsOfAnyWidth) {
  OVERLACE_NEED_GPUS(1);
  for (const int64_t dim : {1, 2, 4, 7, 8, 24, 66, 100, 128, 130, 256, 516})
    for (const DType dtype : {DType::fp32, DType::bf16})
      check_problem({.dtype = dtype, .out = dtype, .batch = 29, .dim = dim}, 2, kSerial);
}

TEST(GpuEmbedding, TakesEachBound) {
  OVERLACE_NEED_GPUS(1);
  for (const char* bounds : {"ignore", "clamp", "zero_row", "none"})
    for (const char* mode : {"sum", "mean", "max"}) {
      check_problem({.mode = mode, .bounds = bounds}, all_ranks(), kOurs);
      check_problem({.mode = mode, .bounds = bounds, .index = DType::i32, .dim = 5}, 2, kSerial);
    }
}

TEST(GpuEmbedding, TakesBatchesOfAnySize) {
  OVERLACE_NEED_GPUS(1);
  const auto ranks = static_cast<size_t>(all_ranks());
  for (const int64_t batch : {0, 1, 3, 200}) check_problem({.batch = batch, .dim = 16}, all_ranks(), kOurs);
  std::vector<int64_t> uneven(ranks + 1, 61);  // all samples belong to the first two
  uneven[0] = 0, uneven[1] = 4;
  check_problem({.row_offsets = uneven}, all_ranks(), kOurs);
  std::vector<int64_t> last(ranks + 1, 0);  // or to the last one
  last.back() = 61;
  check_problem({.mode = "mean", .row_offsets = last}, all_ranks(), kOurs);
  check_problem({.batch = 9}, 4, kOurs);  // one of four has no tables
}

TEST(GpuEmbedding, AloneOnOneRank) {
  OVERLACE_NEED_GPUS(1);
  check_problem({.mode = "mean"}, 1, kSerial);
  check_problem({.dtype = DType::bf16, .out = DType::fp32}, 1, kLibrary);
}

TEST(GpuEmbedding, AgreesWithCpuRanksBitByBit) {
  OVERLACE_NEED_GPUS(1);
  std::vector<Problem> problems = {{.mode = "mean", .is_exact = true},
                                   {.mode = "mean", .dtype = DType::bf16, .is_exact = true},
                                   {.dtype = DType::fp64, .out = DType::fp64, .has_factors = true},
                                   {.mode = "mean", .dtype = DType::fp64, .out = DType::fp64}};
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16})
    for (const char* mode : {"sum", "max"})
      problems.push_back({.mode = mode, .bounds = "clamp", .dtype = dtype, .out = dtype, .is_exact = true});
  for (const Problem& p : problems)
    run_gpu_threads(1, [&](GpuRank& gpu) {
      Site site(gpu, p);
      site.make_bags(1);
      const spec::Schedule schedule = site.schedule("serial", 1);
      site.spoil();
      site.run(schedule);
      EXPECT_EQ(site.differences_from_cpu(schedule), 0) << p.mode << " " << dtype_name(p.dtype);
    });
}

TEST(GpuEmbedding, ByTheLibraryToo) {
  OVERLACE_NEED_GPUS(2);
  for (const char* mode : {"sum", "max"}) check_problem({.mode = mode}, 2, kLibrary, default_options());
  check_problem({.dtype = DType::bf16, .out = DType::bf16, .row_offsets = {0, 50, 61}}, 2, kLibrary, default_options());
}

/// Where rank 1 has a bad index: the second entry of the first bag of its second feature that has two.
Site::Bad bad_entry(const Site& site, const Problem& p, int64_t call) {
  const size_t f = site.placement().features_of(1).first + 1;
  const int64_t rows = site.placement().tables[static_cast<size_t>(site.placement().features[f].table)].rows;
  Site::Bad bad{static_cast<int64_t>(f), 0, 1};
  while (bag_of(p, call, bad.feature, bad.sample, rows).size() < 2) ++bad.sample;
  return bad;
}
/// On rank 1, where it is.
void spoil_an_index(GpuRank& gpu, Site& site, const Problem& p, const Site::Bad& bad) {
  if (gpu.rank != 1) return;
  site.indices().set(site.offsets().at(p.batch + bad.sample) + bad.position, 577);
  site.send();
}

std::string said_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

/// A bag of rank 1 is wrong: its check() has the words of CPU ranks, once; the entry is left out, and the team goes on.
TEST(GpuEmbedding, TellsTheFirstBadIndexOnce) {
  OVERLACE_NEED_GPUS(1);
  for (const DType index : {DType::i64, DType::i32})
    run_gpu_threads(2, [&](GpuRank& gpu) {
      const Problem p{.index = index};
      Site site(gpu, p);
      site.make_bags(1);
      const spec::Schedule schedule = site.schedule("serial", 1);
      site.run(schedule);
      site.check("good");
      const Site::Bad bad = bad_entry(site, p, 1);
      spoil_an_index(gpu, site, p, bad);
      const std::string want = site.refusal();
      site.spoil();
      const std::string early = site.run_and_say(schedule);  // where the kernel is done before the call returns
      gpu.wait();
      EXPECT_EQ(early + said_by([&] { gpu.runtime.check(); }), want);
      EXPECT_EQ(said_by([&] { gpu.runtime.check(); }), "");
      site.check("left out", bad);
      site.make_bags(2);
      site.spoil();
      site.run(schedule);
      site.check("behind it");
      spoil_an_index(gpu, site, p, bad_entry(site, p, 2));
      const std::string told = site.run_and_say(schedule);
      gpu.wait();
      site.make_bags(3);
      site.spoil();
      EXPECT_EQ((told + site.run_and_say(schedule)).empty(), gpu.rank == 0) << "the next call at the latest";
      site.check("told by this call");
    });
}

TEST(GpuEmbedding, TellsOffsetsThatAreNone) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [&](GpuRank& gpu) {
    const Problem p{};
    Site site(gpu, p);
    site.make_bags(1);
    const spec::Schedule schedule = site.schedule("serial", 1);
    site.run(schedule);
    const std::pair<int64_t, int64_t> changes[] = {
        {0, 1}, {0, -5}, {5, 1 << 20}, {5, -1}, {site.num_bags(), 3}, {site.num_bags(), int64_t{1} << 40}};
    for (const auto& [at, value] : changes) {
      site.make_bags(2);
      if (gpu.rank == 0) site.offsets().set(at, value);
      site.send();
      const std::string want = site.refusal();
      const std::string early = site.run_and_say(schedule);
      gpu.wait();
      EXPECT_EQ(early + said_by([&] { gpu.runtime.synchronize(); }), want) << at << " " << value;
      EXPECT_EQ(want.empty(), gpu.rank == 1);
      gpu.team.barrier();
    }
    site.make_bags(3);
    site.spoil();
    site.run(schedule);
    site.check("behind them");
  });
}

/// Where each call is waited for, it tells it itself.
TEST(GpuEmbedding, TellsItAtOnceWhereCallsAreChecked) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_bootstraps(2, [](Bootstrap& bootstrap) {
    RuntimeOptions options = runtime_options({});
    options.checks.sync = true;
    Runtime runtime = Runtime::open(bootstrap, options);
    GpuRank gpu(runtime);
    const Problem p{.mode = "mean"};
    Site site(gpu, p);
    site.make_bags(1);
    const spec::Schedule schedule = site.schedule("hetero_unfused_1d", 2);
    EXPECT_EQ(site.run_and_say(schedule), "");
    spoil_an_index(gpu, site, p, bad_entry(site, p, 1));
    EXPECT_EQ(site.run_and_say(schedule), site.refusal());
    site.make_bags(2);
    EXPECT_EQ(site.run_and_say(schedule), "");
    site.check("behind it");
  });
}

TEST(GpuEmbedding, RefusesBagsOnTheHost) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    Site site(gpu, {});
    site.make_bags(1);
    const spec::Schedule schedule = site.schedule("serial", 1);
    site.run(schedule);
    Vector& indices = site.indices();
    const TensorView device = std::exchange(indices.device, indices.on_host);
    EXPECT_NE(site.run_and_say(schedule).find("embedding_a2a: indices"), std::string::npos);
    indices.device = device;
    site.spoil();
    site.run(schedule);
    site.check("behind it");
  });
}

/// More than 2^31 elements and 4 GiB, of which a few rows are not 0.
TEST(GpuEmbedding, LooksUpFarRows) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    constexpr int64_t kRows = (int64_t{1} << 24) + 3, kDim = 136;
    auto* const weights = gpu.device_array<uint16_t>(static_cast<size_t>(kRows * kDim));
    const int64_t rows[] = {0, kRows - 1, (int64_t{1} << 24) - 7, kRows - 1};
    std::vector<char> row(kDim * 2);
    for (size_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < kDim; ++j)
        base::store_element(row.data(), DType::bf16, j, static_cast<double>(j % 7) + static_cast<double>(16 * i));
      gpu.store(weights + rows[i] * kDim, row.data(), row.size());
    }
    auto* const indices = gpu.device_array<int64_t>(4);
    auto* const offsets = gpu.device_array<int64_t>(3);
    const int64_t starts[] = {0, 1, 4};
    gpu.store(indices, rows, sizeof rows);
    gpu.store(offsets, starts, sizeof starts);
    const TensorView out = made(gpu, 2, kDim, DType::fp32, [](int64_t, int64_t) { return NAN; });
    const ops::EmbeddingA2aArgs args{
        .weights = TensorView::contiguous(weights, DType::bf16, {kRows * kDim}),
        .indices = TensorView::contiguous(indices, DType::i64, {4}),
        .offsets = TensorView::contiguous(offsets, DType::i64, {3}),
        .out = out,
        .batch = 2,
        .placement = base::format(
            R"({{"tables":[{{"rows":{},"dim":136}}],"features":[{{"table":0,"rank":0,"column":0}}]}})", kRows)};
    ops::run(gpu.channel, args, spec::make_schedule(ops::op_spec(gpu.channel, args), "serial"));
    std::vector<float> got(2 * kDim);
    gpu.fetch(got.data(), out.data, got.size() * sizeof(float));
    for (int64_t j = 0; j < kDim; ++j) {
      EXPECT_EQ(got[static_cast<size_t>(j)], static_cast<float>(j % 7));
      EXPECT_EQ(got[static_cast<size_t>(kDim + j)], static_cast<float>(3 * (j % 7) + 16 + 32 + 16));
    }
  });
}

TEST(GpuEmbedding, IsReplayedFromAGraph) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_threads(2, [](GpuRank& gpu) {
    Site site(gpu, {.mode = "mean", .dtype = DType::bf16, .out = DType::bf16});
    site.make_bags(4);
    const spec::Schedule schedule = site.schedule("hetero_unfused_1d", 2);
    check_replays(
        gpu, [&] { site.run(schedule); }, [&] { site.spoil(); }, [&] { site.check("replay"); });
  });
}

}  // namespace
}  // namespace overlace::test
