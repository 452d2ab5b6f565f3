// overlace/gnn.h: every step, batches with the rows of the dataset, and what is thrown.
#include <gtest/gtest.h>

#include <cstring>

#include "overlace/error.h"
#include "overlace/gnn.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

class PublicGnn : public testing::Test {
 protected:
  void SetUp() override {
    make_dataset({.num_vertices = 1 << 11, .dim = 25, .threads = 1}, data());
    SampleRequest sample = test::small_sample();
    sample.epochs = 2;
    make_samples(data(), run(), sample);
    make_packs(data(), run(), test::small_pack(*Dataset::open(data())));
  }
  std::string data() const { return scratch_.path("g"); }
  std::string run() const { return scratch_.path("g.ovg"); }
  /// Names what is thrown: "io: ...".
  template <class Body>
  static std::string thrown(Body body) {
    try {
      body();
      return "nothing";
    } catch (const Error& error) {
      return std::string(errc_name(error.code())) + ": " + error.what();
    }
  }
  Scratch scratch_;
};

TEST_F(PublicGnn, DeliversTheRowsOfTheDataset) {
  verify(run());
  verify(run(), data());
  const test::Matrix matrix(*Dataset::open(data()));
  PackedLoader loader(run());
  EXPECT_EQ(loader.dim(), 25);
  EXPECT_EQ(loader.row_bytes(), 100);
  EXPECT_EQ(loader.dtype(), "fp32");
  EXPECT_EQ(loader.num_classes(), 32);
  EXPECT_EQ(loader.sampled_epochs(), 2);
  EXPECT_GT(loader.memory_bytes(), loader.row_bytes() * loader.num_batches());
  EXPECT_EQ(loader.device_bytes(), 0);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    loader.start(epoch);
    int64_t batches = 0, wrong = 0;
    while (const auto batch = loader.next()) {
      EXPECT_EQ(batch->position, batches++);
      EXPECT_EQ(batch->sampled_epoch, epoch % 2);
      EXPECT_EQ(batch->blocks.num_seeds(), std::ssize(batch->labels));
      ASSERT_EQ(std::ssize(batch->rows), std::ssize(batch->ids) * loader.row_bytes());
      for (size_t i = 0; i < batch->ids.size(); ++i) {
        EXPECT_EQ(batch->ids[i], batch->blocks.inputs[i]);
        wrong += std::memcmp(batch->rows.data() + i * 100, matrix.row(batch->ids[i]).data(), 100) != 0;
      }
      loader.release();
    }
    EXPECT_EQ(batches, loader.num_batches());
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(loader.stats().batches, batches);
    EXPECT_GT(loader.stats().ring_rows, 0);
  }
  PackedLoader moved = std::move(loader);
  moved.start(0, moved.num_batches() - 1);
  EXPECT_TRUE(moved.next().has_value());
  EXPECT_FALSE(moved.next().has_value());
  moved.trace(scratch_.path("t.json"));
  EXPECT_NE(base::read_file(scratch_.path("t.json"))->find("gather["), std::string::npos);
}

TEST_F(PublicGnn, ThrowsWithArgumentValueAndWhatIsWanted) {
  EXPECT_EQ(thrown([&] { make_dataset({.num_vertices = 1}, scratch_.path("one")); }),
            "invalid_argument: generate: num_vertices is 1, wanted 2 to 2147483647");
  EXPECT_NE(thrown([&] { make_dataset({}, data()); }).find("invalid_argument: "), std::string::npos);
  SampleRequest other = test::small_sample();
  other.sampler.batch_size = 0;
  EXPECT_NE(thrown([&] { make_samples(data(), scratch_.path("a"), other); }).find("batch_size is 0"),
            std::string::npos);
  EXPECT_NE(thrown([&] { make_packs(data(), scratch_.path("none"), {}); }).find("none/manifest.json"),
            std::string::npos);
  EXPECT_NE(thrown([&] { PackedLoader(run(), {.packs = "shuffle"}); }).find("no packs shuffle, there are: fixed"),
            std::string::npos);
  EXPECT_NE(thrown([&] { PackedLoader(run(), {.rank = 2, .ranks = 2}); }).find("rank is 2 of 2"), std::string::npos);
  EXPECT_NE(thrown([&] { PackedLoader(run(), {.memory_bytes = 1000}); }).find("out_of_memory: "), std::string::npos);
  EXPECT_NE(thrown([&] { PackedLoader(run(), {.engine = "fast"}); }).find("\"fast\", wanted auto"), std::string::npos);
  EXPECT_NE(thrown([&] { PackedLoader(run(), {.gpu = 99}); }).find("not_supported: a loader on GPU 99"),
            std::string::npos);
  PackedLoader loader(run());
  EXPECT_NE(thrown([&] { loader.start(0, loader.num_batches() + 1); }).find("invalid_argument: "), std::string::npos);
  base::write_file(run() + "/packs-fixed.ovk", "cut").or_throw();
  EXPECT_NE(thrown([&] { verify(run()); }).find("packs-fixed.ovk"), std::string::npos);
  EXPECT_EQ(repair(run(), data()), std::vector<std::string>{"fixed"});
  EXPECT_EQ(thrown([&] { verify(run(), data()); }), "nothing");
}

}  // namespace
}  // namespace overlace::gnn
