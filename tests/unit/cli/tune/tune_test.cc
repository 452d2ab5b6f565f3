#include "cli/tune/tune.h"

#include <gtest/gtest.h>

#include "overlace/error.h"

namespace overlace::cli {
namespace {

std::string words_refusal(const std::string& config, const std::string& tokens, const std::string& shape,
                          int ranks = 2) {
  TuneWords words;
  words.config = config, words.tokens = tokens;
  if (!shape.empty()) words.shapes = {shape};
  try {
    (void)problems_of(words, ranks, DType::fp32);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TuneProblems, AreTheSitesOfAModelAndShapes) {
  TuneWords words;
  words.config = "tiny";
  words.tokens = "64,256";
  words.shapes = {"gemm_ar:48x512x256", "gemm_rs:64x512x256"};
  const std::vector<TuneProblem> list = problems_of(words, 2, DType::fp32);
  ASSERT_EQ(list.size(), 9u);  // four sites at two sizes, and a shape: the other one is a site's
  EXPECT_EQ(list[0].op.to_string(), "ag_gemm M 64 N 512 K 512 G 2 fp32");
  EXPECT_EQ(list[0].name, "qkv");
  EXPECT_EQ(list[1].op.to_string(), "gemm_rs M 64 N 512 K 256 G 2 fp32");
  EXPECT_EQ(list[1].name, "o_proj");
  EXPECT_EQ(list[4].op.m, 256);
  EXPECT_EQ(list[8].op.to_string(), "gemm_ar M 48 N 512 K 256 G 2 fp32");
  EXPECT_EQ(list[8].name, "");
}

TEST(TuneProblems, BadWordsAreRefusedWithTheOption) {
  EXPECT_EQ(words_refusal("", "", ""),
            "neither --config nor --shape is given, wanted one of them: there is nothing to measure");
  EXPECT_EQ(words_refusal("tiny", "", ""), "--config is tiny and --tokens is not given, wanted both or none");
  EXPECT_EQ(words_refusal("", "8", ""), "--config is not given and --tokens is 8, wanted both or none");
  for (const char* shape : {"gemm_rs", "gemm_rs:", "gemm_rs:8x8", "gemm_rs:8x8x8x8", "gemm_rs:8x8x8 ", "gemm_rs:8xax8",
                            "gemm_rs:8x8x99999999999999999999"})
    EXPECT_EQ(words_refusal("", "", shape),
              "--shape is " + std::string(shape) + ", wanted OP:MxNxK such as gemm_rs:4096x8192x2048");
  EXPECT_EQ(words_refusal("", "", "gemm:8x8x8").find("--shape is gemm:8x8x8, wanted an operator of "), 0u);
  EXPECT_EQ(words_refusal("", "", "gemm_rs:0x8x8"), "--m is 0, wanted at least 1");
  EXPECT_NE(words_refusal("tiny", "64", "", 7), "accepted");  // its heads do not fit
  EXPECT_EQ(words_refusal("tiny", "64", "gemm_rs:8x8x8"), "accepted");
}

TuneReport sample_tuning() {
  TuneWords words;
  words.shapes = {"gemm_rs:64x8x8", "ag_gemm:64x8x8", "gemm_ar:64x8x8"};
  const std::vector<TuneProblem> list = problems_of(words, 2, DType::fp32);
  TuneReport out{"here", "here.json, calibrated", "plans.jsonl", 2.5, {{}, {list[2].op}}, list};
  out.result.tuned.push_back({list[0].op, true, {"library", 1}, {"library", 1}, 30, 30, 30});
  out.result.tuned.push_back({list[1].op, false, {"library", 1}, {"hetero_fused_1d", 2}, 20, 16, 20});
  return out;
}

TEST(TuneText, ShowsWhatChangesAndWhatIsLeft) {
  const std::string text = tune_text(sample_tuning());
  EXPECT_EQ(text.find("machine here: here.json, calibrated\n"), 0u) << text;
  for (const char* part : {"library    hetero_fused_1d q 2  20.0    16.0        20.0  1.25x\n", "1.00x\n",
                           "2 problems in 2.5 s: 1 measured, 1 measured before; auto changes at 1, 1.118x in the",
                           "1 problem left, as --seconds were over: the same command goes on\n",
                           "programs with OVERLACE_PLAN_CACHE=plans.jsonl take them\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const std::string none = tune_text({"here", "", "plans.jsonl", 0, {}, {}});
  EXPECT_NE(none.find("0 problems in 0.0 s: 0 measured, 0 measured before\n"), std::string::npos) << none;
}

TEST(TuneJson, HasAllNumbers) {
  const base::Json json = tune_json(sample_tuning());
  EXPECT_EQ(json.find("schema")->as_string(), "overlace.tune/1");
  EXPECT_EQ(json.find("left")->as_array().size(), 1u);
  const base::Json& row = json.find("tuned")->as_array().at(1);
  EXPECT_EQ(row.find("tuned")->find("family")->as_string(), "hetero_fused_1d");
  EXPECT_EQ(row.find("tuned")->find("degree")->as_int(), 2);
  EXPECT_DOUBLE_EQ(row.find("auto")->find("us")->as_double(), 20);
  EXPECT_DOUBLE_EQ(row.find("gain")->as_double(), 1.25);
  EXPECT_FALSE(row.find("measured_before")->as_bool());
}

}  // namespace
}  // namespace overlace::cli
