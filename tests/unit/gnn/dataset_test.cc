#include "src/gnn/dataset/dataset.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "src/base/file.h"
#include "src/gnn/dataset/csc_builder.h"
#include "src/gnn/dataset/fingerprint.h"
#include "tests/unit/gnn/scratch.h"

namespace overlace::gnn {
namespace {

/// Pages of a file that the kernel has in memory.
int64_t cached_pages(int fd, size_t bytes) {
  const size_t pages = bytes / 4096;
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  std::vector<unsigned char> is_there(pages);
  EXPECT_EQ(::mincore(mapped, bytes, is_there.data()), 0);
  ::munmap(mapped, bytes);
  return std::count_if(is_there.begin(), is_there.end(), [](unsigned char page) { return page % 2 == 1; });
}

// Read-ahead of the kernel, up to 8 MiB a page, would bring in all of a file to look at 65 pages of it.
TEST(Fingerprint, ReadsWhatItSamples) {
  constexpr size_t kBytes = size_t{64} << 20;
  const Scratch scratch;
  ASSERT_TRUE(base::write_file(scratch.path("features"), std::string(kBytes, 'x')).ok());
  const int fd = ::open(scratch.path("features").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::fsync(fd), 0);
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const int64_t before = cached_pages(fd, kBytes);
  if (before > 64) {
    ::close(fd);
    GTEST_SKIP() << before << " pages stay in memory on this file system";
  }
  EXPECT_TRUE(sampled_fingerprint(scratch.path(), {"features"}).ok());
  EXPECT_LE(cached_pages(fd, kBytes), before + 2 * 65);
  ::close(fd);
}

/// Four vertices, five edges, rows of three numbers: small, but each part differs from the others.
class DatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    write<int64_t>("indptr.npy", DType::i64, {5}, {0, 2, 3, 3, 5});
    write<int32_t>("indices.npy", DType::i32, {5}, {1, 3, 0, 0, 1});
    write<float>("features.npy", DType::fp32, {4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    write<int64_t>("labels.npy", DType::i64, {4}, {0, 2, -1, 1});
    write<int64_t>("train.npy", DType::i64, {2}, {3, 0});
  }
  template <class T>
  void write(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<T> values) {
    write_array(scratch_.path(name), dtype, shape, values);
  }
  void write_text(const std::string& name, const std::string& text) {
    ASSERT_TRUE(base::write_file(scratch_.path(name), text).ok());
  }
  /// Message of describe(), which must fail and write nothing.
  std::string refusal(const DescribeOptions& options = {}) {
    const auto made = describe(scratch_.path(), options);
    EXPECT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Errc::invalid_argument) << made.status().message();
    EXPECT_FALSE(std::filesystem::exists(scratch_.path("dataset.json")));
    std::string text = made.status().message();
    for (size_t at = 0; (at = text.find(scratch_.path())) != std::string::npos;)
      text.replace(at, scratch_.path().size(), "D");
    return text;
  }
  Scratch scratch_;
};

TEST_F(DatasetTest, IsDescribedAndOpened) {
  const auto made = describe(scratch_.path());
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->isolated, 1);
  EXPECT_EQ(made->unlabelled, 1);
  EXPECT_EQ(made->nan_rows, 0);
  const auto opened = Dataset::open(scratch_.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Description& d = opened->description();
  EXPECT_EQ(d.num_vertices, 4);
  EXPECT_EQ(d.num_edges, 5);
  EXPECT_EQ(d.num_classes, 3);
  EXPECT_EQ(d.features.row_bytes, 12);
  EXPECT_EQ(d.features.bytes - d.features.data_offset, 48);
  EXPECT_EQ(d.id.size(), 32u);
  EXPECT_EQ(opened->graph().degree(3), 2);
  EXPECT_EQ(std::get<std::span<const int32_t>>(opened->graph().indices)[1], 3);
  EXPECT_EQ(opened->labels()[2], -1);
  EXPECT_EQ(std::get<std::span<const int64_t>>(opened->split(Split::train))[0], 3);
  EXPECT_TRUE(std::get<std::span<const int64_t>>(opened->split(Split::test)).empty());
}

TEST_F(DatasetTest, RowsWithoutNumbersAreCounted) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  write<float>("features.npy", DType::fp32, {4, 3}, {0, nan, nan, 3, 4, 5, 6, 7, -inf, 9, 10, 11});
  EXPECT_EQ(describe(scratch_.path()).value().nan_rows, 2);
}

TEST_F(DatasetTest, BadArraysAreNamed) {
  struct Case {
    const char* file;
    std::string bytes, wanted;
  };
  const auto npy = [](const char* header, size_t data) {
    std::string bytes("\x93NUMPY\x01\x00", 8);
    const std::string text(header);
    bytes += {static_cast<char>(text.size()), '\0'};
    return bytes + text + std::string(data, '\0');
  };
  const std::string good = base::npy_header(DType::i64, {5});
  const Case cases[] = {
      {"indptr.npy", good + std::string(39, '\0'),
       "D/indptr.npy: 39 bytes of data after offset 128, wanted 40 for shape (5,)"},
      {"indptr.npy", "PK", "D/indptr.npy: 2 bytes, wanted at least 10 for an npy header"},
      {"indices.npy", std::string(20, 'x'), "D/indices.npy: offset 0: wanted the npy magic"},
      {"features.npy", npy("{'descr': '<f4', 'fortran_order': True, 'shape': (4, 3)}", 48),
       "D/features.npy: fortran_order is True, wanted False (C order)"},
      {"features.npy", npy("{'descr': '>f4', 'fortran_order': False, 'shape': (4, 3)}", 48),
       "D/features.npy: dtype '>f4' (big-endian), wanted one of '<f8', '<f4', '<f2', '<u2', '<i8', '<i4', '|i1', "
       "'|u1', '|b1'"},
      {"features.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (4, 3)}", 48),
       "D/features.npy: dtype '|O' (pickled objects), wanted one of '<f8', '<f4', '<f2', '<u2', '<i8', '<i4', '|i1', "
       "'|u1', '|b1'"},
      {"features.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3)}", 96),
       "D/features.npy: dtype is fp64, wanted fp32, fp16, i8, or 16-bit words said to be bf16"},
      {"labels.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", 16),
       "D/labels.npy: dtype is fp32, wanted i64"},
  };
  for (const Case& c : cases) {
    SetUp();
    write_text(c.file, c.bytes);
    EXPECT_EQ(refusal(), c.wanted);
  }
  std::filesystem::remove(scratch_.path("features.npy"));
  EXPECT_EQ(refusal(), "D/features.npy: No such file or directory");
}

TEST_F(DatasetTest, BadValuesAreNamedWithTheirPosition) {
  write<int64_t>("indptr.npy", DType::i64, {5}, {0, 2, 1, 3, 5});
  EXPECT_EQ(refusal(), "D: graph: indptr[2] is 1, wanted at least indptr[1], which is 2");
  write<int64_t>("indptr.npy", DType::i64, {5}, {0, 2, 3, 3, 4});
  EXPECT_EQ(refusal(), "D: graph: indptr[4], the last, is 4, wanted the number of edges, 5");
  SetUp();
  write<int32_t>("indices.npy", DType::i32, {5}, {1, 3, 0, 4, 1});
  EXPECT_EQ(refusal(), "D: graph: indices[3] is 4, wanted a vertex in [0, 4)");
  SetUp();
  write<float>("features.npy", DType::fp32, {3, 4}, std::vector<float>(12));
  EXPECT_EQ(refusal(), "D/features.npy: shape is (3, 4), wanted (4, dim): a row for each vertex of indptr.npy");
  SetUp();
  EXPECT_EQ(refusal({.num_classes = 2}), "D/labels.npy: label 2 of vertex 1, wanted -1 or one of [0, 2)");
  write<int64_t>("train.npy", DType::i64, {3}, {3, 0, 3});
  EXPECT_EQ(refusal(), "D/train.npy: vertex 3 at position 2 is repeated, wanted each at most once");
  write<int64_t>("train.npy", DType::i64, {2}, {3, 4});
  EXPECT_EQ(refusal(), "D/train.npy: vertex 4 at position 1, wanted one of [0, 4)");
  write<int64_t>("train.npy", DType::i64, {0}, {});
  EXPECT_EQ(refusal(), "D/train.npy: 0 vertices, wanted at least one, or no such file");
}

TEST_F(DatasetTest, LinksThatLeadAwayAreRefused) {
  Scratch other;
  std::filesystem::rename(scratch_.path("labels.npy"), other.path("labels.npy"));
  std::filesystem::create_symlink(other.path("labels.npy"), scratch_.path("labels.npy"));
  EXPECT_EQ(refusal(), "D/labels.npy: leads to " + other.path("labels.npy") + ", wanted a file of the directory");
  std::filesystem::remove(scratch_.path("labels.npy"));
  std::filesystem::remove(scratch_.path("features.npy"));
  std::filesystem::create_symlink("features.npy", scratch_.path("features.npy"));
  EXPECT_EQ(refusal(), "D/features.npy: Too many levels of symbolic links");
}

TEST_F(DatasetTest, AChangedFileIsStale) {
  ASSERT_TRUE(describe(scratch_.path()).ok());
  write<float>("features.npy", DType::fp32, {4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12});
  const auto opened = Dataset::open(scratch_.path());
  EXPECT_EQ(opened.status().code(), Errc::stale);
  EXPECT_NE(opened.status().message().find("they changed since it was written"), std::string::npos);
}

TEST_F(DatasetTest, AFolderWithoutADatasetIsNamed) {
  EXPECT_EQ(Dataset::open("/no/such").status().message(),
            "/no/such: no dataset: cannot open /no/such/dataset.json: No such file or directory");
}

TEST_F(DatasetTest, EveryKeyOfTheDescriptionIsChecked) {
  ASSERT_TRUE(describe(scratch_.path()).ok());
  const std::string good = *base::read_file(scratch_.path("dataset.json"));
  ASSERT_TRUE(parse_description(good, "J").ok());
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_description(text.replace(at, from.size(), to), "J").status().message();
  };
  EXPECT_EQ(
      message("\"id\"", "\"di\""),
      "J: key \"di\" is not known, wanted overlace_gnn, kind, id, num_vertices, num_edges, num_classes, features, "
      "graph, fingerprint");
  EXPECT_EQ(message("\"num_vertices\": 4", "\"num_vertices\": 0"), "J: num_vertices is 0, wanted an integer >= 1");
  EXPECT_EQ(message("\"num_vertices\": 4", "\"num_vertices\": 5"), "J: features: bytes is 176, wanted 188");
  EXPECT_EQ(message("\"num_vertices\": 4", "\"num_vertices\": 4000000000000000000"),
            "J: features: 4000000000000000000 rows of 12 bytes, wanted less than 2^63");
  EXPECT_EQ(message("\"dim\": 3", "\"dim\": 4"), "J: features: row_bytes is 12, wanted dim 4 times 4");
  EXPECT_EQ(message("\"features.npy\"", "\"../features.npy\""),
            "J: features: file is \"../features.npy\", wanted the name of a file beside dataset.json");
  EXPECT_EQ(message("\"fp32\"", "\"fp64\""), "J: features: dtype is \"fp64\", wanted fp32, fp16, bf16 or i8");
  EXPECT_EQ(message("\"csc\"", "\"csr\""), "J: graph: layout is \"csr\", wanted \"csc\"");
  EXPECT_EQ(message("\"overlace_gnn\": 1", "\"overlace_gnn\": 2"), "J: overlace_gnn is 2, wanted 1");
}

TEST(BuildCsc, IsTheSameForAnyThreadsAndMemory) {
  // 3,000 edges in blocks of 100, with loops and repetitions, against a plain count.
  constexpr int64_t kVertices = 97;
  const EdgeBlocks blocks{30, [](int64_t block, std::vector<Edge>* edges) {
                            edges->clear();
                            for (int64_t i = block * 100; i < block * 100 + 100; ++i)
                              edges->push_back({i * i % kVertices, (i * 31 + i / 7) % kVertices});
                            return base::Status();
                          }};
  std::vector<std::vector<int32_t>> wanted(kVertices);
  for (int64_t block = 0; block < blocks.num_blocks; ++block) {
    std::vector<Edge> edges;
    ASSERT_TRUE(blocks.edges_of(block, &edges).ok());
    for (const Edge& e : edges) {
      if (e.source == e.destination) continue;
      wanted[static_cast<size_t>(e.destination)].push_back(static_cast<int32_t>(e.source));
      wanted[static_cast<size_t>(e.source)].push_back(static_cast<int32_t>(e.destination));
    }
  }
  for (const auto& [threads, memory] : {std::pair<int, int64_t>{1, 1 << 20}, {4, 1 << 20}, {3, 800}, {2, 1}}) {
    Scratch scratch;
    CscOptions options;
    options.num_vertices = kVertices;
    options.both_directions = options.drop_loops = true;
    options.threads = threads;
    options.memory_bytes = memory;
    const auto edges = build_csc(blocks, options, scratch.path());
    ASSERT_TRUE(edges.ok()) << edges.status().message();
    const auto indptr = base::NpyFile::open(scratch.path("indptr.npy")).value();
    const auto indices = base::NpyFile::open(scratch.path("indices.npy")).value();
    EXPECT_EQ(indptr.array().data_offset, 4096);
    const CscView graph{indptr.values<int64_t>(), indices.values<int32_t>()};
    ASSERT_TRUE(check_graph(graph).ok());
    ASSERT_EQ(graph.num_vertices(), kVertices);
    for (int64_t v = 0; v < kVertices; ++v) {
      auto neighbours = wanted[static_cast<size_t>(v)];
      std::sort(neighbours.begin(), neighbours.end());
      const auto part = indices.values<int32_t>().subspan(static_cast<size_t>(graph.indptr[static_cast<size_t>(v)]),
                                                          static_cast<size_t>(graph.degree(v)));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), neighbours.begin(), neighbours.end())) << v;
    }
  }
}

TEST(BuildCsc, NamesAnEdgeThatLeavesTheGraph) {
  Scratch scratch;
  const EdgeBlocks blocks{2, [](int64_t block, std::vector<Edge>* edges) {
                            *edges = {{0, 1}, {1, 2 + block}};
                            return base::Status();
                          }};
  CscOptions options;
  options.num_vertices = 3;
  EXPECT_EQ(build_csc(blocks, options, scratch.path()).status().message(),
            "edge 1 of block 1 is 1 -> 3, wanted vertices in [0, 3)");
  EXPECT_FALSE(std::filesystem::exists(scratch.path("indptr.npy")));
}

}  // namespace
}  // namespace overlace::gnn
