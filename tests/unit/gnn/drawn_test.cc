// Whole chains that nobody chose: graph, rows, sampling, caches, order and ranks are drawn from a seed; then sampled,
// packed, on the way killed, verified, and every row of every batch is that of the dataset.
// OVERLACE_TEST_CHAINS says how many are drawn, OVERLACE_TEST_CHAIN which one alone.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "src/gnn/dataset/csc_builder.h"
#include "src/gnn/pipeline/loader.h"
#include "tests/unit/gnn/support/artefacts.h"
#include "tests/unit/io/test_size.h"

namespace overlace::gnn {
namespace {

class DrawnChain {
 public:
  explicit DrawnChain(uint64_t seed) : random_(seed) {}

  void run() {
    make_dataset();
    const Dataset dataset = std::move(Dataset::open(scratch_.path("data"))).value();
    const test::Matrix matrix(dataset);
    const std::string artefact = scratch_.path("a.ovg");
    const SampleRequest sampling = drawn_sampling();
    sample_artefact(dataset, artefact, sampling).status().or_throw();
    ArtefactPackRequest request = drawn_packs(dataset.description());
    if (!find_disk_limit(dataset, artefact, &request)) return;
    SCOPED_TRACE(what_);
    kill_once(dataset, artefact, request);
    const base::Result<Manifest> packed = pack_artefact(dataset, artefact, request);
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    const base::Result<VerifyReport> verified = verify_artefact(artefact, &dataset);
    ASSERT_TRUE(verified.ok()) << verified.status().message();
    for (const Split split : sampling.splits)
      for (int64_t rank = 0; rank < request.ranks; ++rank) load(dataset, matrix, artefact, split, rank, request.ranks);
  }

 private:
  int64_t below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  template <class T>
  T one_of(std::initializer_list<T> words) {
    return *(words.begin() + below(std::ssize(words)));
  }

  void make_dataset() {
    const int64_t n = between(2, 700);
    const DType dtype = one_of({DType::fp32, DType::fp16, DType::bf16, DType::i8});
    const int64_t dim = below(4) == 0 ? between(1, 3000) : between(1, 60);
    what_ = base::format("{} vertices x {} {}", n, dim, dtype_name(dtype));
    std::string bytes = base::npy_header(dtype, {n, dim}, one_of({64, 4096}));
    const size_t header = bytes.size();
    bytes.resize(header + static_cast<size_t>(n * dim) * dtype_bytes(dtype));
    for (size_t i = header; i < bytes.size(); ++i) bytes[i] = static_cast<char>(random_());
    std::filesystem::create_directories(scratch_.path("data"));
    base::write_file(scratch_.path("data/features.npy"), bytes).or_throw();
    const int64_t edges = between(0, 8 * n);
    const int64_t skew = between(1, 3);
    std::vector<Edge> list(static_cast<size_t>(edges));
    for (Edge& edge : list) {
      edge = {below(n), below(n)};
      for (int64_t i = 1; i < skew; ++i) edge.source = std::min(edge.source, below(n));
    }
    CscOptions csc;
    csc.num_vertices = n;
    csc.both_directions = below(2) == 0;
    csc.memory_bytes = between(64, 100000);
    build_csc({1, [&](int64_t, std::vector<Edge>* out) { return *out = list, base::Status(); }}, csc,
              scratch_.path("data"))
        .status()
        .or_throw();
    std::vector<int64_t> vertices(static_cast<size_t>(n)), labels(static_cast<size_t>(n));
    for (size_t v = 0; v < vertices.size(); ++v) vertices[v] = static_cast<int64_t>(v), labels[v] = between(-1, 4);
    std::shuffle(vertices.begin(), vertices.end(), random_);
    const int64_t train = between(1, n - 1), valid = between(1, n - train);
    const auto split = [&](const char* name, int64_t first, int64_t count) {
      write_array<int64_t>(scratch_.path(name), DType::i64, {count},
                           {vertices.begin() + first, vertices.begin() + first + count});
    };
    split("data/train.npy", 0, train);
    split("data/valid.npy", train, valid);
    if (below(4) > 0) write_array<int64_t>(scratch_.path("data/labels.npy"), DType::i64, {n}, labels);
    describe(scratch_.path("data"), {.bf16 = true}).status().or_throw();
    what_ += base::format(", {} edges, {} and {} seeds", edges, train, valid);
    most_batches_ = train;
  }

  SampleRequest drawn_sampling() {
    SampleRequest request;
    for (int64_t hops = between(1, 3); hops > 0; --hops)
      request.sampler.fanouts.push_back(static_cast<int32_t>(one_of<int64_t>({-1, 0, 1, 2, between(1, 12)})));
    request.sampler.batch_size = between(std::max<int64_t>(1, most_batches_ / 40), most_batches_ + 3);
    request.sampler.seed = random_();
    request.sampler.replace = below(2) == 0;
    request.splits = {Split::train, Split::valid};
    request.epochs = between(1, 3);
    request.threads = static_cast<int>(between(1, 3));
    what_ += base::format(", batches of {}, {} hops, {} epochs", request.sampler.batch_size,
                          request.sampler.fanouts.size(), request.epochs);
    return request;
  }

  ArtefactPackRequest drawn_packs(const Description& d) {
    ArtefactPackRequest request;
    const auto cache = [&] {
      return one_of<int64_t>({0, between(0, d.num_vertices), 2 * d.num_vertices}) * d.features.row_bytes;
    };
    request.gpu_bytes = cache();
    request.cpu_bytes = cache();
    const BatchOrder order = one_of({BatchOrder::fixed, BatchOrder::segments, BatchOrder::shuffle});
    request.order = {order, order == BatchOrder::segments ? between(1, 20) : 0};
    request.is_automatic_order = false;
    request.policy = order == BatchOrder::shuffle ? one_of({CachePolicy::hottest, CachePolicy::none})
                                                  : one_of({CachePolicy::belady, CachePolicy::belady,
                                                            CachePolicy::hottest, CachePolicy::lru, CachePolicy::none});
    request.depth = static_cast<int>(between(1, 6));
    request.page_bytes = one_of<int64_t>({4096, 8192, 65536});
    request.ranks = one_of<int64_t>({1, 1, 2, 3});
    request.memory_bytes = between(2 * d.features.row_bytes, 2 * d.features.bytes);
    if (below(2) == 0) request.disk_bytes = between(1, 4) * d.features.bytes;
    what_ += base::format(", {} {} of {}, caches of {} and {} bytes, depth {}, pages of {}, {} ranks, {} on disk",
                          name_of(order), name_of(request.policy), request.order.segment_batches, request.gpu_bytes,
                          request.cpu_bytes, request.depth, request.page_bytes, request.ranks, request.disk_bytes);
    return request;
  }

  /// Twice the limit until the packs fit; a limit that is too small is bad input, and nothing else may be refused.
  bool find_disk_limit(const Dataset& dataset, const std::string& artefact, ArtefactPackRequest* request) {
    for (int tries = 0; tries < 12; ++tries, request->disk_bytes *= 2) {
      request->is_dry = true;
      const base::Status status = pack_artefact(dataset, artefact, *request).status();
      request->is_dry = false;
      if (status.ok()) return true;
      EXPECT_EQ(status.code(), Errc::invalid_argument) << what_ << ": " << status.message();
      EXPECT_GT(request->disk_bytes, 0) << what_ << ": " << status.message();
      if (request->disk_bytes == 0) return false;
    }
    ADD_FAILURE() << what_ << ": no limit of the disk is large enough";
    return false;
  }

  void kill_once(const Dataset& dataset, const std::string& artefact, const ArtefactPackRequest& request) {
    const auto delay_us = static_cast<useconds_t>(between(0, 20000));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(pack_artefact(dataset, artefact, request).ok() ? 0 : 1);
    ::usleep(delay_us);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
    }
  }

  void load(const Dataset& dataset, const test::Matrix& matrix, const std::string& artefact, Split split, int64_t rank,
            int64_t ranks) {
    LoaderOptions options;
    options.split = split;
    options.rank = rank;
    options.ranks = ranks;
    options.order_seed = random_();
    options.io.engine = one_of({"auto", "pread", "buffered"});
    const auto loader = std::move(Loader::open(artefact, options)).value();
    const auto row_bytes = static_cast<size_t>(dataset.description().features.row_bytes);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const int64_t position = epoch == 1 ? below(loader->num_batches() + 1) : 0;
      loader->start(epoch, position).or_throw();
      int64_t batches = position;
      while (true) {
        const auto batch = loader->next();
        ASSERT_TRUE(batch.ok()) << batch.status().message();
        if (!batch->has_value()) break;
        const std::span<const uint32_t> inputs = (*batch)->blocks.inputs;
        ASSERT_EQ((*batch)->rows.size(), inputs.size() * row_bytes);
        for (size_t i = 0; i < inputs.size(); ++i)
          ASSERT_TRUE(std::ranges::equal((*batch)->rows.subspan(i * row_bytes, row_bytes), matrix.row(inputs[i])))
              << "epoch " << epoch << ", batch " << (*batch)->number << ", input " << i;
        for (size_t i = 0; i < (*batch)->labels.size(); ++i)
          ASSERT_EQ((*batch)->labels[i], dataset.labels().empty() ? -1 : dataset.labels()[inputs[i]]);
        ++batches;
        loader->release();
      }
      ASSERT_EQ(batches, loader->num_batches());
    }
  }

  std::mt19937_64 random_;
  Scratch scratch_;
  std::string what_;
  int64_t most_batches_ = 0;
};

TEST(DrawnChains, PackVerifyAndLoadWhateverWasDrawn) {
  const int64_t chains = io::test_size("OVERLACE_TEST_CHAINS", 12);
  const int64_t alone = io::test_size("OVERLACE_TEST_CHAIN", 0);
  const uint64_t first = alone > 0 ? static_cast<uint64_t>(alone) : std::random_device{}();
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(alone > 0 ? 1 : chains); ++seed) {
    SCOPED_TRACE(base::format("OVERLACE_TEST_CHAIN={}", seed));
    DrawnChain(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace overlace::gnn
