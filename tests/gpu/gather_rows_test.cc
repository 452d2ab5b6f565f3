// Rows by their numbers on a GPU against the gather on the CPU: widths, places, sources, ids out of range, graphs.
#include "src/gnn/gather/gather_rows.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "overlace/capi_gnn.h"
#include "src/gnn/gather/device_gather.h"
#include "src/gnn/sample/random.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::gnn {
namespace {

using test::gpu_count;

enum class Where { device, pinned, managed, peer };

/// Memory of one kind on device 0 or beside it, freed with this.
class Memory {
 public:
  Memory(Where where, size_t bytes) : where_(where) {
    bytes = std::max<size_t>(bytes, 1);
    switch (where) {
      case Where::device:
        EXPECT_CUDA(cudaMalloc(&data_, bytes));
        break;
      case Where::pinned:
        EXPECT_CUDA(cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
        break;
      case Where::managed:
        EXPECT_CUDA(cudaMallocManaged(&data_, bytes));
        break;
      case Where::peer:
        EXPECT_CUDA(cudaSetDevice(1));
        EXPECT_CUDA(cudaMalloc(&data_, bytes));
        EXPECT_CUDA(cudaSetDevice(0));
        break;
    }
  }
  ~Memory() { (void)(where_ == Where::pinned ? cudaFreeHost(data_) : cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(data_) + offset; }

 private:
  Where where_;
  void* data_ = nullptr;
};

/// Rows whose bytes follow from `seed`, row and place, `offset` bytes behind an aligned address, with a copy for the
/// CPU.
struct Table {
  Table(Where where, int64_t num_rows, int64_t row_bytes, size_t offset, uint64_t seed)
      : bytes(static_cast<size_t>(num_rows * row_bytes)), memory(where, bytes.size() + offset) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      const uint64_t word = random_word(seed, i);
      std::memcpy(&bytes[i], &word, std::min(sizeof word, bytes.size() - i));
    }
    EXPECT_CUDA(cudaMemcpy(memory.at(offset), bytes.data(), bytes.size(), cudaMemcpyDefault));
    rows = {memory.at(offset), num_rows};
  }
  std::vector<std::byte> bytes;
  Memory memory;
  DeviceRows rows;
};

class GatherRowsTest : public testing::Test {
 protected:
  static constexpr size_t kGuard = 64;

  void SetUp() override {
    OVERLACE_NEED_GPUS(1);
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    word_ = std::make_unique<Memory>(Where::device, sizeof(uint64_t));
    reset_word();
  }
  void TearDown() override {
    word_.reset();
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  void reset_word() { EXPECT_CUDA(cudaMemset(word_->at(0), 0xff, sizeof(uint64_t))); }
  uint64_t word() {
    uint64_t value = 0;
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    EXPECT_CUDA(cudaMemcpy(&value, word_->at(0), sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }

  static std::vector<int64_t> draw(int64_t count, int64_t num_rows, uint64_t seed = 3) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int64_t>(random_below(random_word(seed, i), static_cast<uint64_t>(num_rows)));
    return ids;
  }

  /// Bytes of the output and of guards around it, which were 0xA5 before. `ids` are on the device as T.
  template <class T>
  std::vector<std::byte> gathered(DeviceGather g, const std::vector<int64_t>& ids, size_t offset, std::string* error) {
    const std::vector<T> narrow(ids.begin(), ids.end());
    const Memory on_device(Where::device, ids.size() * sizeof(T));
    EXPECT_CUDA(cudaMemcpy(on_device.at(0), narrow.data(), ids.size() * sizeof(T), cudaMemcpyHostToDevice));
    std::vector<std::byte> out(ids.size() * static_cast<size_t>(g.row_bytes) + 2 * kGuard + offset);
    const Memory room(Where::device, out.size());
    EXPECT_CUDA(cudaMemset(room.at(0), 0xA5, out.size()));
    EXPECT_CUDA(cudaDeviceSynchronize());
    g.ids = on_device.at(0);
    g.num_ids = std::ssize(ids);
    g.id_bytes = sizeof(T);
    g.out = room.at(kGuard + offset);
    const base::Status status = queue_gather_rows(g, stream_);
    *error = status.message();
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    EXPECT_CUDA(cudaMemcpy(out.data(), room.at(0), out.size(), cudaMemcpyDeviceToHost));
    return out;
  }

  /// What the CPU gathers of the tables' bytes, between guards.
  static std::vector<std::byte> wanted(const std::vector<const Table*>& tables, int64_t row_bytes,
                                       const std::vector<int64_t>& ids, size_t offset) {
    std::vector<std::byte> whole, out(ids.size() * static_cast<size_t>(row_bytes) + 2 * kGuard + offset);
    for (const Table* table : tables) whole.insert(whole.end(), table->bytes.begin(), table->bytes.end());
    std::fill(out.begin(), out.end(), std::byte{0xA5});
    const RowTable rows{whole.data(), std::ssize(whole) / row_bytes, row_bytes};
    const auto to = std::span(out).subspan(kGuard + offset, ids.size() * static_cast<size_t>(row_bytes));
    gather_rows(rows, std::span(ids), 1, to).or_throw();
    return out;
  }

  void expect_rows_of_the_cpu(const std::vector<const Table*>& tables, int64_t row_bytes, int64_t count, size_t offset,
                              int ctas = 0) {
    std::vector<DeviceRows> sources;
    int64_t num_rows = 0;
    for (const Table* table : tables) {
      sources.push_back(table->rows);
      num_rows += table->rows.num_rows;
    }
    DeviceGather g;
    g.sources = sources;
    g.row_bytes = row_bytes;
    g.ctas = ctas;
    const std::vector<int64_t> ids = draw(count, num_rows);
    const std::vector<std::byte> want = wanted(tables, row_bytes, ids, offset);
    std::string error;
    for (const bool is_checked : {false, true}) {
      g.first_bad = is_checked ? reinterpret_cast<uint64_t*>(word_->at(0)) : nullptr;
      ASSERT_TRUE(gathered<int64_t>(g, ids, offset, &error) == want)
          << row_bytes << " B, " << count << " ids " << error;
      ASSERT_TRUE(gathered<int32_t>(g, ids, offset, &error) == want)
          << row_bytes << " B, " << count << " ids " << error;
      ASSERT_EQ(error, "");
    }
    ASSERT_EQ(word(), kNoBadId);
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Memory> word_;
};

TEST_F(GatherRowsTest, GivesTheRowsOfEveryWidthAndPlace) {
  for (const int64_t width : {1,   2,   3,   4,   5,   7,   8,   12,  16,  17,   24,   31,   48,   64,   96,   100,
                              112, 127, 128, 136, 192, 200, 272, 512, 513, 1000, 1024, 1040, 4096, 4100, 8191, 8192}) {
    for (const Where where : {Where::device, Where::pinned}) {
      for (const size_t offset : {0, 1, 4, 16, 24}) {
        const Table table(where, 97, width, offset, 5);
        for (const int64_t count : {1, 31, 333}) expect_rows_of_the_cpu({&table}, width, count, offset);
      }
      const Table table(where, 97, width, 0, 6);
      expect_rows_of_the_cpu({&table}, width, 2000, 8);  // the output is less aligned than the table
    }
  }
}

TEST_F(GatherRowsTest, FillsTheGpuAndRunsInOneBlock) {
  for (const int64_t width : {4, 60, 512, 3000}) {
    const Table near(Where::device, 1000, width, 0, 7), far(Where::pinned, 1000, width, 4, 8);
    expect_rows_of_the_cpu({&near}, width, 200'000'000 / (width * 10), 0);
    expect_rows_of_the_cpu({&far}, width, 40'000'000 / (width * 10), 0);
    expect_rows_of_the_cpu({&near}, width, 5000, 0, 1);
    expect_rows_of_the_cpu({&far}, width, 5000, 0, 3);
  }
}

TEST_F(GatherRowsTest, MixesSourcesInOneKernel) {
  for (const int64_t width : {1, 20, 128, 400, 512, 4096}) {
    const Table hot(Where::device, 50, width, 0, 11), cold(Where::pinned, 70, width, 0, 12);
    const Table none(Where::device, 0, width, 0, 13), shared(Where::managed, 30, width, 0, 14);
    const Table odd(Where::pinned, 40, width, 4, 15);
    expect_rows_of_the_cpu({&hot, &cold}, width, 3000, 0);
    expect_rows_of_the_cpu({&cold, &none, &shared, &hot, &none}, width, 3000, 0);
    expect_rows_of_the_cpu({&odd, &hot, &cold}, width, 3000, 0);
    expect_rows_of_the_cpu(std::vector<const Table*>(16, &hot), width, 3000, 0);
  }
}

// Tables of the host above 256 MiB are read in the order of their rows.
TEST_F(GatherRowsTest, ReadsLargeTablesOfTheHostInOrder) {
  constexpr int64_t kBytes = int64_t{270} << 20;
  for (const int64_t width : {3, 20, 128, 400, 512, 2048, 2052}) {
    const Table hot(Where::device, 50, width, 0, 41),
        cold(Where::pinned, kBytes / width, width, width == 400 ? 4 : 0, 42);
    const int64_t most = 40'000'000 / width;
    expect_rows_of_the_cpu({&cold}, width, std::min<int64_t>(most, 1'200'000), 0);
    expect_rows_of_the_cpu({&hot, &cold, &hot}, width, 4096, 8);
    expect_rows_of_the_cpu({&cold, &hot}, width, 4095, 0);
    expect_rows_of_the_cpu({&cold}, width, 9001, 0, 1);  // more than one block puts in order at a time
    expect_rows_of_the_cpu({&cold}, width, 18001, 0, 3);
  }
}

TEST_F(GatherRowsTest, InOrderIdsMayBeAlikeOrWrong) {
  constexpr int64_t kWidth = 512, kRows = (int64_t{300} << 20) / kWidth;
  const Table table(Where::pinned, kRows, kWidth, 0, 43);
  const std::vector<DeviceRows> sources = {table.rows};
  DeviceGather g;
  g.sources = sources;
  g.row_bytes = kWidth;
  std::string error;
  for (const int64_t id : {int64_t{0}, kRows - 1}) {
    const std::vector<int64_t> alike(20000, id);
    ASSERT_TRUE(gathered<int64_t>(g, alike, 0, &error) == wanted({&table}, kWidth, alike, 0)) << id;
  }
  std::vector<int64_t> ids = draw(20000, kRows);
  std::vector<std::byte> want = wanted({&table}, kWidth, ids, 0);
  for (const auto& [at, id] : {std::pair<size_t, int64_t>{0, -1}, {777, kRows}, {19999, int64_t{1} << 40}}) {
    ids[at] = id;
    std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(kGuard + at * kWidth), kWidth, std::byte{0xA5});
  }
  EXPECT_TRUE(gathered<int64_t>(g, ids, 0, &error) == want) << error;
  g.first_bad = reinterpret_cast<uint64_t*>(word_->at(0));
  EXPECT_TRUE(gathered<int64_t>(g, ids, 0, &error) == std::vector<std::byte>(want.size(), std::byte{0xA5}));
  EXPECT_EQ(word(), 0u);
}

TEST_F(GatherRowsTest, ReadsThePeersMemoryToo) {
  OVERLACE_NEED_GPUS(2);
  for (const int64_t width : {3, 20, 128, 400, 512, 4096}) {
    const Table near(Where::device, 50, width, 0, 21), far(Where::peer, 60, width, 0, 22);
    const Table odd(Where::peer, 60, width, 4, 23), cold(Where::pinned, 70, width, 0, 24);
    expect_rows_of_the_cpu({&far}, width, 3000, 0);
    expect_rows_of_the_cpu({&near, &far, &cold, &odd}, width, 3000, 0);
  }
}

TEST_F(GatherRowsTest, CountsBytesPastTheReachOf32Bits) {
  constexpr int64_t kRows = 600'000, kWidth = 8192;  // 4.9 GB
  const Memory memory(Where::device, static_cast<size_t>(kRows * kWidth));
  const std::vector<int64_t> ids = {kRows - 1, 0, 262'144, 524'288, 599'998, 262'143};
  std::vector<std::byte> row(kWidth);
  for (const int64_t id : ids) {
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(random_word(static_cast<uint64_t>(id), i));
    EXPECT_CUDA(cudaMemcpy(memory.at(static_cast<size_t>(id * kWidth)), row.data(), row.size(), cudaMemcpyDefault));
  }
  const DeviceRows rows{memory.at(0), kRows};
  DeviceGather g;
  g.sources = {&rows, 1};
  g.row_bytes = kWidth;
  std::string error;
  const std::vector<std::byte> out = gathered<int64_t>(g, ids, 0, &error);
  EXPECT_EQ(error, "");
  for (size_t at = 0; at < ids.size(); ++at)
    for (size_t i = 0; i < row.size(); ++i)
      ASSERT_EQ(out[kGuard + at * kWidth + i], static_cast<std::byte>(random_word(static_cast<uint64_t>(ids[at]), i)))
          << ids[at] << " " << i;
}

TEST_F(GatherRowsTest, NamesTheFirstIdOutOfRangeAndWritesNothing) {
  const Table table(Where::device, 60, 48, 0, 31), more(Where::pinned, 40, 48, 0, 32);
  const std::vector<DeviceRows> sources = {table.rows, more.rows};
  DeviceGather g;
  g.sources = sources;
  g.row_bytes = 48;
  g.first_bad = reinterpret_cast<uint64_t*>(word_->at(0));
  std::vector<int64_t> ids = draw(50000, 100);
  const std::vector<std::byte> untouched(ids.size() * 48 + 2 * kGuard, std::byte{0xA5});
  std::string error;
  for (const auto& [at, id] : {std::pair<size_t, int64_t>{49999, 100}, {30000, -1}, {7, int64_t{1} << 40}, {0, -100}}) {
    ids[at] = id;
    EXPECT_TRUE(gathered<int64_t>(g, ids, 0, &error) == untouched) << at;
    EXPECT_EQ(error, "");
    EXPECT_EQ(word(), at);
    EXPECT_TRUE(gathered<int64_t>(g, draw(50000, 100), 0, &error) == untouched) << "the word has not been reset";
    reset_word();
  }
  std::vector<int64_t> small = {0, 99, -1, 100};
  EXPECT_TRUE(gathered<int32_t>(g, small, 0, &error) == std::vector<std::byte>(4 * 48 + 2 * kGuard, std::byte{0xA5}));
  EXPECT_EQ(word(), 2u);
}

TEST_F(GatherRowsTest, LeavesRowsOfWrongIdsAloneWhereNobodyAsks) {
  for (const int64_t width : {1, 48, 512}) {
    const Table table(Where::device, 100, width, 0, 33);
    const std::vector<DeviceRows> sources = {table.rows};
    DeviceGather g;
    g.sources = sources;
    g.row_bytes = width;
    std::vector<int64_t> ids = draw(1000, 100);
    std::vector<std::byte> want = wanted({&table}, width, ids, 0);
    for (const auto& [at, id] : {std::pair<size_t, int64_t>{0, -1}, {31, 100}, {32, INT64_MAX}, {999, INT64_MIN}}) {
      ids[at] = id;
      const auto begin = want.begin() + static_cast<int64_t>(kGuard) + static_cast<int64_t>(at) * width;
      std::fill(begin, begin + width, std::byte{0xA5});
    }
    std::string error;
    EXPECT_TRUE(gathered<int64_t>(g, ids, 0, &error) == want) << width;
    EXPECT_EQ(error, "");
  }
}

TEST_F(GatherRowsTest, TakesNoIdsAndNoRows) {
  const Table empty(Where::device, 0, 64, 0, 41);
  const std::vector<DeviceRows> sources = {empty.rows};
  DeviceGather g;
  g.sources = sources;
  g.row_bytes = 64;
  g.first_bad = reinterpret_cast<uint64_t*>(word_->at(0));
  std::string error;
  gathered<int64_t>(g, {}, 0, &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(word(), kNoBadId);
  gathered<int64_t>(g, {0, 1}, 0, &error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(word(), 0u);
}

TEST_F(GatherRowsTest, RefusesMemoryThatNoGpuReads) {
  std::vector<std::byte> pageable(4096);
  const Memory room(Where::device, 4096);
  const DeviceRows rows{pageable.data(), 64}, good{room.at(0), 16};
  DeviceGather g;
  g.sources = {&rows, 1};
  g.row_bytes = 64;
  g.ids = room.at(2048);
  g.num_ids = 2;
  g.out = room.at(1024);
  const std::string tail =
      " bytes lie in memory that no GPU reads, wanted memory of a GPU or pinned memory of the host";
  base::Status status = queue_gather_rows(g, stream_);
  EXPECT_EQ(status.code(), Errc::invalid_argument);
  EXPECT_EQ(status.message(), "sources[0]: its 4096" + tail);
  g.sources = {&good, 1};
  g.ids = pageable.data();
  EXPECT_EQ(queue_gather_rows(g, stream_).message(), "ids: its 16" + tail);
  g.ids = room.at(2048);
  g.out = pageable.data();
  EXPECT_EQ(queue_gather_rows(g, stream_).message(), "out: its 128" + tail);
  g.out = room.at(1024);
  g.device = gpu_count();
  EXPECT_EQ(queue_gather_rows(g, stream_).code(), Errc::cuda);
  EXPECT_CUDA(cudaGetLastError());
}

TEST_F(GatherRowsTest, IsReplayedWithOtherIdsAndRows) {
  constexpr int64_t kWidth = 400, kCount = 5000;
  Table hot(Where::device, 200, kWidth, 0, 51), cold(Where::pinned, 300, kWidth, 0, 52);
  const std::vector<DeviceRows> sources = {hot.rows, cold.rows};
  const Memory ids(Where::device, kCount * 8), out(Where::device, kCount * kWidth);
  DeviceGather g;
  g.sources = sources;
  g.row_bytes = kWidth;
  g.ids = ids.at(0);
  g.num_ids = kCount;
  g.out = out.at(0);
  g.first_bad = reinterpret_cast<uint64_t*>(word_->at(0));
  EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(queue_gather_rows(g, stream_).message(), "");
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (uint64_t round = 0; round < 5; ++round) {
    const std::vector<int64_t> drawn = draw(kCount, 500, 60 + round);
    for (Table* table : {&hot, &cold}) {
      for (size_t i = 0; i < table->bytes.size(); ++i)
        table->bytes[i] = static_cast<std::byte>(random_word(70 + round, i));
      void* const to = const_cast<void*>(table->rows.data);
      EXPECT_CUDA(cudaMemcpy(to, table->bytes.data(), table->bytes.size(), cudaMemcpyDefault));
    }
    EXPECT_CUDA(cudaMemcpy(ids.at(0), drawn.data(), kCount * 8, cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUDA(cudaGraphLaunch(replay, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    std::vector<std::byte> got(kCount * kWidth);
    EXPECT_CUDA(cudaMemcpy(got.data(), out.at(0), got.size(), cudaMemcpyDeviceToHost));
    const std::vector<std::byte> want = wanted({&hot, &cold}, kWidth, drawn, 0);
    EXPECT_EQ(std::memcmp(got.data(), want.data() + kGuard, got.size()), 0) << round;
  }
  EXPECT_EQ(word(), kNoBadId);
  EXPECT_CUDA(cudaGraphExecDestroy(replay));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(GatherRowsTest, IsOfferedByTheCApi) {
  const Table table(Where::pinned, 100, 36, 0, 61);
  const std::vector<int64_t> ids = draw(500, 100);
  const Memory on_device(Where::device, ids.size() * 8), out(Where::device, ids.size() * 36);
  EXPECT_CUDA(cudaMemcpy(on_device.at(0), ids.data(), ids.size() * 8, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaDeviceSynchronize());
  const ovl_gnn_row_source source = {table.rows.data, 100};
  ovl_gnn_device_gather request = {};
  request.struct_size = sizeof request;
  request.sources = &source;
  request.num_sources = 1;
  request.row_bytes = 36;
  request.ids = on_device.at(0);
  request.num_ids = 500;
  request.id_bytes = 8;
  request.out = out.at(0);
  request.first_bad = reinterpret_cast<uint64_t*>(word_->at(0));
  request.stream = stream_;
  EXPECT_EQ(ovl_gnn_gather_rows_on_device(&request), OVL_OK) << ovl_error_text();
  EXPECT_EQ(word(), kNoBadId);
  std::vector<std::byte> got(ids.size() * 36);
  EXPECT_CUDA(cudaMemcpy(got.data(), out.at(0), got.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::memcmp(got.data(), wanted({&table}, 36, ids, 0).data() + kGuard, got.size()), 0);
}

}  // namespace
}  // namespace overlace::gnn
