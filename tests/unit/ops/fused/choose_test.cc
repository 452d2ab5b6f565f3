// Which instance of a fused kernel a schedule takes, and what it says where there is none.
#include "src/ops/fused/choose.h"

#include <gtest/gtest.h>

#include <string>

#include "src/spec/costs.h"
#include "src/spec/fused_pod.h"

namespace overlace::ops::fused {
namespace {

constexpr int kSms = 132;

std::string gather_of(int64_t m, int64_t n, int ranks = 4, int sms = kSms, DType dtype = DType::bf16,
                      BMajor b_major = BMajor::k) {
  std::vector<int64_t> off;
  for (int r = 0; r <= ranks; ++r) off.push_back(m / ranks * r);
  return std::string(choose_gather(dtype, b_major, off, n, sms)->name);
}

TEST(ChooseInstance, TakesFewestWavesTimesColumns) {
  EXPECT_EQ(gather_of(1024, 2560), "bf16_k_128x160_c21_s5");   // 64 clusters: one wave of 160 columns
  EXPECT_EQ(gather_of(2048, 2560), "bf16_k_128x160_c21_s5");   // 128: two
  EXPECT_EQ(gather_of(1024, 14336), "bf16_k_128x224_c21_s4");  // 4 waves as 7 of 128; 6 of 160, 4 of 256 take longer
  EXPECT_EQ(gather_of(2048, 14336), "bf16_k_128x160_c21_s5");  // 11; 8 of 224 take longer
  EXPECT_EQ(gather_of(4096, 1024), "bf16_k_128x256_c21_s4");   // one wave of 256 as two of 128: the wider
  EXPECT_EQ(gather_of(1024, 8), "bf16_k_128x128_c21_s6");      // nothing to fill
  EXPECT_EQ(gather_of(1024, 256, 2, 2), "bf16_k_128x256_c21_s4");
}

TEST(ChooseInstance, KnowsBothTypesAndBothLayouts) {
  for (const int64_t m : {1024, 2048, 4096}) {
    for (const int64_t n : {8, 1024, 2560, 5120}) {  // 14336: only bf16 has tiles of 224
      const std::string like = gather_of(m, n), fp16 = gather_of(m, n, 4, kSms, DType::fp16);
      EXPECT_EQ(fp16.substr(0, 4), "fp16");
      EXPECT_EQ(fp16.substr(4), like.substr(4)) << "the same tile";
      EXPECT_EQ(gather_of(m, n, 4, kSms, DType::fp16, BMajor::n).substr(4),
                gather_of(m, n, 4, kSms, DType::bf16, BMajor::n).substr(4));
    }
  }
  // Boxes of 64 columns: no tile of 160.
  EXPECT_EQ(gather_of(1024, 2560, 4, kSms, DType::bf16, BMajor::n), "bf16_n_128x192_c21_s4");
  EXPECT_EQ(gather_of(4096, 1024, 4, kSms, DType::bf16, BMajor::n), "bf16_n_128x256_c21_s4");
  EXPECT_EQ(gather_of(1024, 14336, 4, kSms, DType::fp16, BMajor::n), "fp16_n_128x128_c21_s6");
  EXPECT_EQ(choose_gather(DType::fp32, BMajor::k, std::vector<int64_t>{0, 1}, 8, kSms), nullptr);
}

/// Each capability that a peer lacks is a refusal with the fact; what a rank cannot do towards itself is no matter.
TEST(CheckPeers, RefusesWithTheFirstFactThatIsMissing) {
  spec::Schedule schedule;
  schedule.op = "gemm_rs";
  schedule.family = "tma_slot";
  Caps all;
  all.load_store = all.device_initiated = all.multi_writer_signals = true;
  EXPECT_TRUE(check_peers(schedule, std::vector<Caps>(3, all), 1).ok());
  EXPECT_TRUE(check_peers(schedule, std::vector<Caps>(1), 0).ok()) << "alone";
  const std::pair<bool Caps::*, const char*> kFacts[] = {{&Caps::load_store, "on another host"},
                                                         {&Caps::device_initiated, "processes on one GPU"},
                                                         {&Caps::multi_writer_signals, "no native atomics"}};
  for (const auto& [fact, words] : kFacts) {
    std::vector<Caps> caps(3, all);
    caps[1].*fact = false;
    EXPECT_TRUE(check_peers(schedule, caps, 1).ok()) << words;
    for (const int rank : {0, 2}) {
      const base::Status status = check_peers(schedule, caps, rank);
      EXPECT_EQ(status.code(), Errc::not_supported);
      const std::string& text = status.message();
      EXPECT_EQ(text.find("gemm_rs: schedule tma_slot: one kernel cannot work with rank 1"), 0u) << text;
      EXPECT_NE(text.find(words), std::string::npos) << text;
      EXPECT_EQ(text.substr(text.size() - 6), "rank " + std::to_string(rank)) << text;
    }
  }
}

/// One GPU of another capability, older or newer, is enough; all ranks say so alike.
TEST(CheckCapability, KernelsAreForHopperAloneAndEveryRankMustHaveIt) {
  spec::OpSpec op{.op = "ag_gemm", .m = 1024, .n = 1024, .k = 1024, .ranks = 3, .row_offsets = {}};
  op.dtype = op.out_dtype = DType::bf16;
  op.b_layout = spec::BLayout::nk;
  const spec::Schedule fused = spec::make_schedule(op, "k_slab", 4), unfused = spec::make_schedule(op, "serial");
  const auto caps = [](int first, int second, int third) {
    std::vector<Caps> list(3);
    list[0].compute_capability = first, list[1].compute_capability = second, list[2].compute_capability = third;
    return list;
  };
  EXPECT_TRUE(check_capability(fused, caps(90, 90, 90)).ok());
  EXPECT_TRUE(check_capability(unfused, caps(80, 90, 100)).ok());
  const base::Status older = check_capability(fused, caps(90, 80, 90)),
                     newer = check_capability(fused, caps(90, 90, 100));
  EXPECT_EQ(older.code(), Errc::not_supported);
  EXPECT_EQ(
      older.message(),
      "ag_gemm: schedule k_slab: its kernel is not for the GPU of rank 1, which has compute capability 8.0; wanted: "
      "compute capability 9.0");
  EXPECT_NE(newer.message().find("the GPU of rank 2, which has compute capability 10.0; wanted"), std::string::npos)
      << newer.message();

  spec::Machine machine;
  machine.name = "x";
  machine.compute_capability = 89;
  EXPECT_TRUE(check_capability(fused, machine).ok()) << "CPU ranks run every schedule";
  machine.is_gpu = true;
  EXPECT_NE(check_capability(fused, machine).message().find("machine x, which has compute capability 8.9"),
            std::string::npos);
  EXPECT_TRUE(check_capability(unfused, machine).ok());
  machine.compute_capability = 90;
  EXPECT_TRUE(check_capability(fused, machine).ok());
}

TEST(ChooseInstance, ModelsKnowTheTile) {
  for (const int64_t m : {1024, 1536, 3072, 4096, 6144, 12288}) {
    for (int64_t n = 8; n <= 28672; n += 632) {
      std::vector<int64_t> off;
      for (int r = 0; r <= 4; ++r) off.push_back(m / 4 * r);
      const InstanceSpec* chosen = choose_gather(DType::bf16, BMajor::k, off, n, kSms);
      EXPECT_EQ(chosen->spec.tile_n * chosen->spec.cluster_n, spec::gather_tile_cols(off, n, kSms)) << m << " " << n;
      EXPECT_EQ(chosen->spec.tile_m * chosen->spec.cluster_m, spec::kFusedTileRows);
    }
  }
}

TEST(ChooseInstance, LeavesHalvesOfKToTheBench) {
  for (int64_t m = 8; m <= 16384; m *= 2) {
    for (int64_t n = 8; n <= 16384; n *= 2) EXPECT_EQ(gather_of(m, n).find("_k2"), std::string::npos) << m << " " << n;
  }
}

TEST(ChooseInstance, SlotsTakeTheTileOfTheSchedule) {
  const InstanceSpec* narrow = find_scatter(DType::bf16, BMajor::k, 256, 128);
  ASSERT_NE(narrow, nullptr);
  EXPECT_EQ(narrow->name, "bf16_k_128x128_c21_s6");
  EXPECT_EQ(find_scatter(DType::bf16, BMajor::k, 256, 160), nullptr);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const BMajor major : {BMajor::k, BMajor::n}) {
      const InstanceSpec* one = find_scatter(dtype, major, 256, 128);
      ASSERT_NE(one, nullptr);
      EXPECT_EQ(one->name, base::format("{}_{}_128x128_c21_s6", dtype_name(dtype), major == BMajor::k ? "k" : "n"));
    }
  }
  EXPECT_EQ(find_scatter(DType::fp16, BMajor::k, 256, 256), nullptr);
  EXPECT_EQ(find_scatter(DType::fp32, BMajor::k, 256, 128), nullptr);
}

TEST(ChooseInstance, FewTokensTakeTheNarrowestTileThatHoldsThem) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Kernel kernel : {Kernel::one_shot, Kernel::gather_one_shot}) {
      int64_t narrower = 0;
      for (const int64_t tokens : kOneShotTiles) {
        for (const int64_t m : {narrower + 1, tokens - 1, tokens}) {
          for (const int64_t n : {8, 2560, 8192}) {
            const InstanceSpec* one = choose_one_shot(kernel, dtype, BMajor::k, m, n, kSms);
            ASSERT_NE(one, nullptr) << m;
            EXPECT_EQ(one->spec.dtype, dtype);
            EXPECT_TRUE(one->spec.swaps_ab);
            EXPECT_EQ(one->spec.tile_m, kOneShotRows);
            EXPECT_EQ(one->spec.tile_n, tokens);
            EXPECT_EQ(one->spec.tile_n, one_shot_tile_tokens(m));
            EXPECT_EQ(one_shot_columns(8) % (one->spec.tile_m * one->spec.cluster_m), 0) << "slots hold whole tiles";
            EXPECT_EQ(one->spec.cluster_m, m > 64 && one->spec.split_k == 1 ? 2 : 1) << "many tokens are loaded once";
          }
        }
        narrower = tokens;
      }
      EXPECT_EQ(choose_one_shot(kernel, dtype, BMajor::k, kOneShotTokens + 1, 64, kSms), nullptr);
      EXPECT_EQ(choose_one_shot(kernel, dtype, BMajor::n, 1, 64, kSms), nullptr);
    }
  }
}

TEST(ChooseInstance, FewTokensTakeTwoCtasATileWhereThatIsLess) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    Kernel kernel = Kernel::one_shot;
    const auto split_of = [&](int64_t m, int64_t n) {
      return choose_one_shot(kernel, dtype, BMajor::k, m, n, kSms)->spec.split_k;
    };
    for (const int64_t m : {1, 16, 17, 64, 65, 128}) {
      kernel = kernel == Kernel::one_shot ? Kernel::gather_one_shot : Kernel::one_shot;
      EXPECT_EQ(split_of(m, 8), 2);
      EXPECT_EQ(split_of(m, 2560), 2);
      EXPECT_EQ(split_of(m, 66 * 64), 2) << "as many tiles as clusters";
      EXPECT_EQ(split_of(m, 67 * 64), 1) << "one more would be a second round";
      EXPECT_EQ(split_of(m, 132 * 64), 1);
      EXPECT_EQ(split_of(m, 133 * 64), 2) << "three rounds of halves instead of two";
      EXPECT_EQ(split_of(m, 14336), 1);
      EXPECT_EQ(split_of(m, 5120), 1) << "two halves for each of some CTAs are as much as a whole";
    }
    EXPECT_EQ(split_of(kOneShotSplitTokens + 1, 2560), 1);
  }
}

spec::OpSpec op_of(const std::string& name) {
  spec::OpSpec op;
  op.op = name;
  op.m = 1024, op.n = 2560, op.k = 8192;
  op.ranks = 4;
  return op;
}

TEST(CheckQueues, CopiesThatWaitForAKernelNeedQueuesOfTheirOwn) {
  Caps caps;
  caps.stream_wait = true;
  const spec::Schedule one = spec::make_schedule(op_of("gemm_rs"), "tracked", 2);
  const spec::Schedule three = spec::make_schedule(op_of("gemm_rs"), "tracked", 2, {{"ce_queues", int64_t{3}}});
  EXPECT_TRUE(check_queues(one, caps, -1, 0).ok());
  EXPECT_TRUE(check_queues(one, caps, 2, 0).ok());
  EXPECT_TRUE(check_queues(three, caps, 4, 0).ok());
  EXPECT_EQ(
      check_queues(three, caps, 3, 2).message(),
      "gemm_rs: schedule tracked_rs: CUDA_DEVICE_MAX_CONNECTIONS is 3, and 3 streams wait for counters of what the "
      "caller's runs; wanted: at least 4; rank 2");
  const base::Status status = check_queues(one, caps, 1, 0);
  EXPECT_EQ(status.code(), Errc::not_supported);
  EXPECT_NE(status.message().find("is 1, and 1 streams"), std::string::npos) << status.message();
  EXPECT_TRUE(check_queues(spec::make_schedule(op_of("gemm_rs"), "tma_slot", 2), caps, 1, 0).ok()) << "copies nothing";
  caps.stream_wait = false;
  EXPECT_NE(check_queues(one, caps, 8, 1).message().find("cannot wait for words"), std::string::npos);
}

TEST(ChooseInstance, FindsOneForSchedulesOfBothFamilies) {
  const auto gather = choose_instance(spec::make_schedule(op_of("ag_gemm"), "k_slab", 4), kSms);
  ASSERT_TRUE(gather.ok()) << gather.status().message();
  EXPECT_EQ((*gather)->name, "bf16_k_128x160_c21_s5");
  for (const int degree : {1, 64}) {
    const auto scatter = choose_instance(spec::make_schedule(op_of("gemm_rs"), "tma_slot", degree), kSms);
    ASSERT_TRUE(scatter.ok()) << scatter.status().message();
    EXPECT_EQ((*scatter)->name, "bf16_k_128x128_c21_s6");
  }
}

TEST(ChooseInstance, ScatterTakesTheTileThatTheShapeGivesItsSchedule) {
  const auto name = [](const spec::OpSpec& op) {
    const auto found = choose_instance(spec::make_schedule(op, "tma_slot", 64), kSms);
    return found.ok() ? std::string((*found)->name) : found.status().message();
  };
  spec::OpSpec op = op_of("gemm_rs");
  op.m = 4096, op.n = 8192, op.k = 2048, op.ranks = 2;
  EXPECT_EQ(name(op), "bf16_k_128x256_c21_s4");
  op.b_layout = spec::BLayout::kn;
  EXPECT_EQ(name(op), "bf16_n_128x128_c21_s6");
  op.dtype = op.out_dtype = DType::fp16;
  EXPECT_EQ(name(op), "fp16_n_128x128_c21_s6");
}

TEST(ChooseInstance, FindsOneForBothTypesBothLayoutsAndABias) {
  for (const char* name : {"ag_gemm", "gemm_rs"}) {
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      for (const spec::BLayout layout : {spec::BLayout::nk, spec::BLayout::kn}) {
        for (const bool has_bias : {false, true}) {
          spec::OpSpec op = op_of(name);
          op.dtype = op.out_dtype = dtype;
          op.b_layout = layout;
          op.bias = has_bias;
          const auto found =
              choose_instance(spec::make_schedule(op, op.op == "ag_gemm" ? "k_slab" : "tma_slot", 4), kSms);
          ASSERT_TRUE(found.ok()) << op.to_string() << ": " << found.status().message();
          EXPECT_EQ((*found)->spec.dtype, dtype);
          EXPECT_EQ((*found)->spec.b_major == BMajor::k, layout == spec::BLayout::nk);
        }
      }
    }
  }
}

TEST(ChooseInstance, AllReduceOfManyRowsTakesTheKernelsOfReduceScatter) {
  spec::OpSpec op = op_of("gemm_ar");
  const auto name = [&](int degree, const spec::Params& options) {
    const auto found = choose_instance(spec::make_schedule(op, "tma_slot", degree, options), kSms);
    return found.ok() ? std::string((*found)->name) : found.status().message();
  };
  EXPECT_EQ(name(4, {}), "bf16_k_128x128_c21_s6");
  EXPECT_EQ(name(64, {{"align_n", int64_t{256}}}), "bf16_k_128x256_c21_s4");
  EXPECT_EQ(name(65, {}), "gemm_ar: schedule tma_slot_ar: no kernel for degree 65; wanted: 1 to 64");
  op.dtype = op.out_dtype = DType::fp16;
  op.b_layout = spec::BLayout::kn;
  EXPECT_EQ(name(4, {}), "fp16_n_128x128_c21_s6");
}

TEST(ChooseInstance, OneShotSaysWhatIsMissing) {
  const auto message = [](const spec::OpSpec& op) {
    const auto found = choose_instance(spec::make_schedule(op, "one_shot"), kSms);
    return found.ok() ? std::string((*found)->name) : found.status().message();
  };
  for (const char* name : {"gemm_rs", "gemm_ar"}) {
    spec::OpSpec one = op_of(name);
    one.m = 33;
    one.bias = true;
    EXPECT_EQ(message(one), "bf16_k_64x64_c11_s12_k2_t");
    one.m = 128;
    one.n = 8192;
    EXPECT_EQ(message(one), "bf16_k_64x128_c21_s8_t");
    one.m = 129;
    one.dtype = one.out_dtype = DType::fp16;
    EXPECT_EQ(message(one), "fp16_k_64x256_c21_s4_t");
  }
  spec::OpSpec op = op_of("gemm_ar");
  op.m = kOneShotTokens + 1;
  EXPECT_EQ(message(op), "gemm_ar: schedule one_shot_ar: no kernel for M 257; wanted: at most 256");
  op.m = 1;
  op.b_layout = spec::BLayout::kn;
  EXPECT_EQ(message(op), "gemm_ar: schedule one_shot_ar: no kernel for bf16 -> bf16, b kn; wanted: b nk");
  op = op_of("ag_gemm");
  op.m = 16;
  op.bias = true;
  op.row_offsets = {0, 0, 3, 16, 16};
  EXPECT_EQ(message(op), "bf16_k_64x16_c11_s21_k2_t");
  op.activation = spec::Activation::swiglu;
  EXPECT_EQ(message(op), "ag_gemm: schedule one_shot: no kernel for swiglu of few rows; wanted: none");
  op = op_of("gemm_ar");
  op.m = 1;
  op.k = 12;
  EXPECT_EQ(message(op), "gemm_ar: schedule one_shot_ar: no kernel for N 2560, K 12; wanted: multiples of 8");
}

TEST(ChooseInstance, SaysWhatIsMissing) {
  const auto expect_missing = [](const spec::OpSpec& op, int degree, const spec::Params& options, const char* text) {
    const auto found =
        choose_instance(spec::make_schedule(op, op.op == "ag_gemm" ? "k_slab" : "tma_slot", degree, options), kSms);
    ASSERT_FALSE(found.ok()) << op.to_string();
    EXPECT_EQ(found.status().code(), Errc::not_supported);
    EXPECT_NE(found.status().message().find(text), std::string::npos) << found.status().message();
  };
  for (const char* name : {"ag_gemm", "gemm_rs"}) {
    spec::OpSpec op = op_of(name);
    op.dtype = op.out_dtype = DType::fp32;
    expect_missing(op, 2, {}, "no kernel for fp32 -> fp32, b nk; wanted: bf16 or fp16, and as much out");
    op = op_of(name);
    op.out_dtype = DType::fp32;
    expect_missing(op, 2, {}, "no kernel for bf16 -> fp32");
    op.b_layout = spec::BLayout::kn;
    expect_missing(op, 2, {}, "no kernel for bf16 -> fp32, b kn");
    op = op_of(name);
    op.n = 2561;
    expect_missing(op, 2, {}, "N 2561, K 8192; wanted: multiples of 8");
    op.n = 0;
    expect_missing(op, 2, {}, "N 0, K 8192");
    op = op_of(name);
    op.k = 8196;
    expect_missing(op, 2, {}, "N 2560, K 8196; wanted: multiples of 8");
    op = op_of(name);
    op.ranks = 9;
    expect_missing(op, 2, {}, "9 ranks; wanted: 2 to 8");
    expect_missing(op_of(name), 65, {}, "degree 65; wanted: 1 to 64");
  }
  expect_missing(op_of("ag_gemm"), 3, {{"align_k", int64_t{8}}},
                 "slabs of other widths; wanted: equal ones, multiples of 64 columns");
  expect_missing(op_of("gemm_rs"), 2, {{"align", int64_t{128}}}, "tiles 128x128");
  spec::Schedule uneven = spec::make_schedule(op_of("ag_gemm"), "k_slab", 3);
  ASSERT_TRUE(choose_instance(uneven, kSms).ok());
  uneven.tables["slab"] = {0, 64, 192, 8192};
  EXPECT_NE(choose_instance(uneven, kSms).status().message().find("slabs of other widths"), std::string::npos);
}

}  // namespace
}  // namespace overlace::ops::fused
