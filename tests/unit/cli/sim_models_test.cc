#include <gtest/gtest.h>

#include <string>

#include "cli/sim_graph.h"
#include "cli/sim_t3.h"
#include "cli/sim_validate.h"
#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/json.h"

namespace overlace::cli {
namespace {

/// What `call` prints, as JSON.
template <class Call>
base::Json printed_json(Call call) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(call(), 0);
  return base::Json::parse(testing::internal::GetCapturedStdout()).value();
}

TEST(SimT3Command, OneConfigurationOfEverySubLayer) {
  T3Words words;
  words.config = "t3_mca";
  words.json = "-";
  const base::Json list = printed_json([&] { return sim_t3(words); });
  ASSERT_EQ(list.as_array().size(), 4U);
  for (const base::Json& one : list.as_array()) {
    EXPECT_EQ(one.find("config")->as_string(), "t3_mca");
    EXPECT_GT(one.find("speedup")->as_double(), 1);
  }
}

TEST(SimT3Command, ConstantsReachTheModel) {
  T3Words words;
  words.config = "t3";
  words.json = "-";
  const auto first_us = [&] {
    return printed_json([&] { return sim_t3(words); }).as_array()[1].find("total_us")->as_double();
  };
  const double before = first_us();
  words.update_cost = 2;
  EXPECT_GT(first_us(), before);
}

TEST(SimT3Command, RefusesUnknownWords) {
  T3Words words;
  words.config = "t4";
  EXPECT_THROW(sim_t3(words), InvalidArgument);
  words = {};
  words.model = "bert";
  EXPECT_THROW(sim_t3(words), InvalidArgument);
  words = {};
  words.dram_GBps = -1;
  EXPECT_THROW(sim_t3(words), InvalidArgument);
}

TEST(SimGraphCommand, BandAndOneStep) {
  GraphWords words;
  words.graph = "dlrm";
  words.json = "-";
  const base::Json band = printed_json([&] { return sim_graph(words); });
  ASSERT_EQ(band.as_array().size(), 3U);
  EXPECT_LT(band.as_array()[0].find("least")->as_double(), band.as_array()[0].find("most")->as_double());
  words.network = "rail";
  words.tables = 4;
  const base::Json step = printed_json([&] { return sim_graph(words); });
  EXPECT_EQ(step.as_array().at(0).find("tables")->as_int(), 4);
  words.tables = -1;
  EXPECT_THROW(sim_graph(words), InvalidArgument);
  words.graph = "cnn";
  EXPECT_THROW(sim_graph(words), InvalidArgument);
}

TEST(SimValidateCommand, ExitCodeSaysWhetherARequiredRowMisses) {
  ValidateWords words;
  words.golden = OVERLACE_SOURCE_DIR "/tests/golden";
  words.ids = {"V12"};
  words.json = "-";
  EXPECT_EQ(printed_json([&] { return sim_validate(words); }).as_array().size(), 1U);
  // A table that says what no model gives.
  const std::string folder = testing::TempDir() + "overlace_sim_validate";
  ASSERT_EQ(std::system(("mkdir -p " + folder + "/llmcompass").c_str()), 0);
  base::write_file(folder + "/llmcompass/all_reduce_a100x4.csv",
                   "bytes,us\n8,1\n16,100\n2048,1\n4096,90\n131072,1\n262144,80\n1048576,1\n2097152,70\n16777216,1\n"
                   "33554432,60\n")
      .or_throw();
  words.golden = folder;
  words.ids = {"V2"};
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_validate(words), 1);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("\"pass\": false"), std::string::npos);
  words.ids = {"V3"};
  EXPECT_THROW(sim_validate(words), IoError);
}

}  // namespace
}  // namespace overlace::cli
