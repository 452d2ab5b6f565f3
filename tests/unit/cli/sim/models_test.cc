#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "cli/sim/check.h"
#include "cli/sim/graph.h"
#include "cli/sim/offload.h"
#include "cli/sim/t3.h"
#include "cli/trace/trace.h"
#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/json.h"

namespace overlace::cli {
namespace {

/// Rows of what `call` prints.
template <class Call>
base::Json printed_rows(Call call) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(call(), 0);
  return *base::Json::parse(testing::internal::GetCapturedStdout()).value().find("rows");
}

TEST(SimT3Command, OneConfigurationOfEverySubLayer) {
  T3Words words;
  words.config = "t3_mca";
  words.json = "-";
  const base::Json list = printed_rows([&] { return sim_t3(words); });
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
    return printed_rows([&] { return sim_t3(words); }).as_array()[1].find("total_us")->as_double();
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
  for (std::optional<double>* one : {&words.dram_GBps, &words.link_GBps, &words.update_cost, &words.comm_cost}) {
    for (const double bad : {0.0, -1.0, 1e9, std::nan("")}) {
      words = {};
      *one = bad;
      EXPECT_THROW(sim_t3(words), InvalidArgument) << bad;
    }
  }
}

TEST(SimGraphCommand, BandAndOneStep) {
  DlrmWords words;
  words.json = "-";
  const base::Json band = printed_rows([&] { return sim_graph_dlrm(words); });
  ASSERT_EQ(band.as_array().size(), 3U);
  EXPECT_LT(band.as_array()[0].find("least")->as_double(), band.as_array()[0].find("most")->as_double());
  words.network = "rail";
  words.tables = 4;
  const base::Json step = printed_rows([&] { return sim_graph_dlrm(words); });
  EXPECT_EQ(step.as_array().at(0).find("tables")->as_int(), 4);
  EXPECT_EQ(step.as_array()[0].find("exchange")->as_string(), "assumed");
  words.local_batch = 256;
  words.machine = "h200x2";
  const base::Json both = printed_rows([&] { return sim_graph_dlrm(words); });
  ASSERT_EQ(both.as_array().size(), 2U);
  EXPECT_EQ(both.as_array()[1].find("exchange")->as_string(), "simulated");
  EXPECT_NE(both.as_array()[1].find("gather_us")->as_double(), both.as_array()[0].find("gather_us")->as_double());
  EXPECT_EQ(both.as_array()[1].find("mlp_us")->as_double(), both.as_array()[0].find("mlp_us")->as_double());
  words.tables = words.local_batch = 0;
  EXPECT_THROW(sim_graph_dlrm(words), InvalidArgument);  // a machine for a band
  words.machine = "";
  words.tables = -1;
  EXPECT_THROW(sim_graph_dlrm(words), InvalidArgument);
}

double number(const base::Json& list, size_t row, const char* key) {
  return list.as_array().at(row).find(key)->as_double();
}

TEST(SimGraphCommand, TransformerOnBothNetworks) {
  TransformerWords words;
  words.json = "-";
  words.network.gpus = 16;
  words.run.micro_batches = 2;
  words.model.layers = 4;
  const base::Json list = printed_rows([&] { return sim_graph_transformer(words); });
  ASSERT_EQ(list.as_array().size(), 6U);
  EXPECT_EQ(list.as_array()[0].find("network")->as_string(), "torus(4, 4, 100)");
  EXPECT_EQ(list.as_array()[3].find("network")->as_string(), "rail_fat_tree(2, 8, 48.5, 64, 1)");
  for (const size_t row : {0, 3}) {
    EXPECT_GT(number(list, row, "step_us"), number(list, row + 1, "step_us"));      // whole, overlapped
    EXPECT_GT(number(list, row + 1, "step_us"), number(list, row + 2, "step_us"));  // free
  }
  words.straggler = 1.5;
  const base::Json slow = printed_rows([&] { return sim_graph_transformer(words); });
  EXPECT_GT(number(slow, 5, "step_us"), 1.4 * number(list, 5, "step_us"));
}

TEST(SimGraphCommand, MoeWithCountsAndATimeline) {
  const std::string folder = testing::TempDir() + "overlace_sim_graph";
  ASSERT_EQ(std::system(("mkdir -p " + folder).c_str()), 0);
  base::write_file(folder + "/counts.json", R"({"counts": [[9000, 0], [9000, 0]]})").or_throw();
  MoeWords words;
  words.json = "-";
  words.network.network = "nvswitch(2)";
  words.model.experts = 2;
  words.model.top_k = 1;
  words.model.tokens = 9000;
  words.counts = folder + "/counts.json";
  words.trace = folder + "/moe.et";
  const base::Json list = printed_rows([&] { return sim_graph_moe(words); });
  ASSERT_EQ(list.as_array().size(), 3U);
  EXPECT_EQ(number(list, 0, "imbalance"), 2);
  EXPECT_EQ(number(list, 0, "sent_bytes"), 9000.0 / 2 * 7168 * 2);
  const base::Trace trace = load_trace(words.trace).value();
  EXPECT_EQ(trace.spans.back().rank, 1);
}

/// A token has both experts of rank 1 or one of rank 0 and one of rank 1.
TEST(SimGraphCommand, MoeSendsRowsOrCopies) {
  const std::string file = testing::TempDir() + "overlace_moe_rows.json";
  base::write_file(file, R"({"counts": [[300, 800, 900], [300, 800, 900]], "rows": [[300, 1000], [300, 1000]]})")
      .or_throw();
  MoeWords words;
  words.json = "-";
  words.network.network = "nvswitch(2)";
  words.model.experts = 3;
  words.model.top_k = 2;
  words.model.tokens = 1000;
  words.model.shared_experts = 1;
  words.counts = file;
  words.expert_begin = "0,1,3";
  const base::Json list = printed_rows([&] { return sim_graph_moe(words); });
  EXPECT_EQ(number(list, 0, "sent_bytes"), (1000 + 300) / 2.0 * 7168 * 2);
  EXPECT_EQ(number(list, 0, "copy_bytes"), (1700 + 300) / 2.0 * 7168 * 2);
  EXPECT_GT(number(list, 0, "shared_us"), 0);
  words.run.is_row_per_copy = true;
  const base::Json copies = printed_rows([&] { return sim_graph_moe(words); });
  EXPECT_EQ(number(copies, 0, "sent_bytes"), number(list, 0, "copy_bytes"));
  EXPECT_GT(number(copies, 0, "dispatch_us"), number(list, 0, "dispatch_us"));
  base::write_file(file, R"({"counts": [[300, 800, 900], [300, 800, 900]], "expert_begin": [0, 1, 3]})").or_throw();
  EXPECT_THROW(sim_graph_moe(words), InvalidArgument);  // both say where experts lie
  words.expert_begin = "0,x,3";
  EXPECT_THROW(sim_graph_moe(words), InvalidArgument);
}

TEST(SimGraphCommand, MoeBlamesSizesBeforeWhatIsCountedByThem) {
  const std::string file = testing::TempDir() + "overlace_moe_sizes.json";
  base::write_file(file, R"({"counts": [[1, 2], [2, 1]]})").or_throw();
  const auto message = [&](auto change) -> std::string {
    MoeWords words;
    words.network.network = "nvswitch(2)";
    change(&words);
    try {
      sim_graph_moe(words);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([&](MoeWords* w) { w->run.group = -1, w->counts = file; }),
            "moe: groups of -1 ranks, wanted a divisor of 2 ranks");
  EXPECT_EQ(message([](MoeWords* w) { w->model.experts = -1, w->expert_begin = "0,1"; }),
            "moe: top 8 of -1 experts, wanted 1 to all of at most 65536");
}

TEST(SimGraphCommand, Co2RulesInOrder) {
  Co2Words words;
  words.json = "-";
  words.network.network = "rail";
  words.run.step_us = 1000;
  const base::Json list = printed_rows([&] { return sim_graph_co2(words); });
  ASSERT_EQ(list.as_array().size(), std::size(study::kOuterRules));
  EXPECT_LT(number(list, 0, "efficiency"), number(list, 1, "efficiency"));  // ddp, local_sgd
  EXPECT_LT(number(list, 1, "efficiency"), number(list, 4, "efficiency"));  // co2
  words.rule = "co2";
  EXPECT_EQ(printed_rows([&] { return sim_graph_co2(words); }).as_array().size(), 1U);
}

/// What the planner's closed form says, where nothing slows anything.
TEST(SimGraphCommand, OffloadIsTheClosedFormOfThePlan) {
  const std::string machine = testing::TempDir() + "overlace_alone.json";
  spec::Machine alone = spec::find_machine("h200x4");
  alone.contention.clear();
  base::write_file(machine, spec::to_json(alone)).or_throw();
  for (const auto& [host, binds] : {std::pair{"1TiB", "compute"}, {"40GiB", "disk"}, {"0", "disk"}}) {
    OffloadGraphWords words;
    words.config = "Qwen3-32B";
    words.device_memory = "10GiB";
    words.host_memory = host;
    words.machine = machine;
    words.tokens = 32768;
    words.json = "-";
    const PlannedOffload planned = planned_offload(words);
    const base::Json list = printed_rows([&] { return sim_graph_offload(words); });
    ASSERT_EQ(list.as_array().size(), 3U);
    EXPECT_EQ(list.as_array()[1].find("binds")->as_string(), binds);
    EXPECT_NEAR(number(list, 1, "compute_us"), 1e6 * planned.plan.compute_s, 1);
    EXPECT_NEAR(number(list, 1, "host_us"), 1e6 * planned.plan.host_s, 1);
    EXPECT_NEAR(number(list, 1, "disk_us"), 1e6 * planned.plan.disk_s, 1);
    EXPECT_NEAR(number(list, 1, "bound_us"), 1e6 * planned.plan.total_s(), 1);
    // Layers that stay are whole ones, so that slots are not as far ahead everywhere.
    EXPECT_NEAR(number(list, 1, "pass_us"), 1e6 * planned.plan.total_s(), 0.1e6 * planned.plan.total_s());
    EXPECT_NEAR(number(list, 0, "pass_us"),
                number(list, 1, "compute_us") + number(list, 1, "host_us") + number(list, 1, "disk_us"), 1);
    EXPECT_NEAR(number(list, 2, "pass_us"), number(list, 1, "compute_us"), 1);
  }
}

TEST(SimGraphCommand, OffloadMovesActivationsThatDoNotFit) {
  const std::string machine = testing::TempDir() + "overlace_alone_too.json";
  spec::Machine alone = spec::find_machine("h200x4");
  alone.contention.clear();
  base::write_file(machine, spec::to_json(alone)).or_throw();
  for (const double host_gbps : {55.0, 5.0}) {
    OffloadGraphWords words;
    words.config = "Llama-3.1-8B";
    words.device_memory = "2GiB";
    words.host_memory = "1TiB";
    words.host_gbps = host_gbps;
    words.machine = machine;
    words.tokens = 65536;
    words.json = "-";
    const PlannedOffload planned = planned_offload(words);
    EXPECT_EQ(planned.plan.resting_bytes, int64_t{1} << 30);
    const base::Json list = printed_rows([&] { return sim_graph_offload(words); });
    EXPECT_EQ(list.as_array()[1].find("binds")->as_string(), host_gbps > 50 ? "compute" : "host link");
    EXPECT_NEAR(number(list, 1, "host_us"), 1e6 * planned.plan.host_s, 1);
    EXPECT_NEAR(number(list, 1, "bound_us"), 1e6 * planned.plan.total_s(), 1);
    EXPECT_NEAR(number(list, 1, "pass_us"), 1e6 * planned.plan.total_s(), 0.1e6 * planned.plan.total_s());
    const double bytes =
        static_cast<double>(planned.plan.host * planned.plan.layer_bytes) + 2.0 * 32 * 65536 * 4096 * 2;
    EXPECT_NEAR(number(list, 0, "pass_us"), number(list, 1, "compute_us") + bytes / (host_gbps * 1e3), 10);
    EXPECT_NEAR(number(list, 2, "pass_us"), number(list, 1, "compute_us"), 1);
  }
}

TEST(SimGraphCommand, OffloadSaysWhatItCannotDo) {
  OffloadGraphWords words;
  EXPECT_THROW(sim_graph_offload(words), InvalidArgument);  // no device memory
  words.device_memory = "1MiB";
  EXPECT_THROW(sim_graph_offload(words), OutOfMemory);
  words.device_memory = "16GiB";
  words.slots = 1;
  EXPECT_THROW(sim_graph_offload(words), InvalidArgument);
  words.slots = 2;
  words.trace = "picture.png";
  EXPECT_THROW(sim_graph_offload(words), InvalidArgument);
}

TEST(SimGraphCommand, AGraphOfLinksFromAFile) {
  const std::string path = testing::TempDir() + "overlace_network.json";
  base::write_file(path, R"({"name": "pair", "ranks": 2, "vertices": 2, "links": [
    {"from": 0, "to": 1, "GBps": 10, "alpha_us": 1}, {"from": 1, "to": 0, "GBps": 10, "alpha_us": 1}]})")
      .or_throw();
  Co2Words words;
  words.json = "-";
  words.rule = "local_sgd";
  words.network.network = path;
  words.run.per_group = 1;
  words.run.parameters = 1e6;
  const base::Json list = printed_rows([&] { return sim_graph_co2(words); });
  EXPECT_EQ(list.as_array().at(0).find("network")->as_string(), "pair");
  EXPECT_NEAR(number(list, 0, "all_reduce_us"), 4e6 / 10e3 + 2, 0.1);
}

TEST(SimGraphCommand, RefusesBadWords) {
  const auto message = [](auto change) -> std::string {
    Co2Words words;
    change(&words);
    try {
      sim_graph_co2(words);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  using W = Co2Words;
  EXPECT_EQ(message([](W* w) { w->network.network = "star"; }),
            "--network is star, wanted all, torus, rail, FILE.json or a blueprint such as ring(8, 25)");
  EXPECT_EQ(message([](W* w) { w->network = {"rail", 12}; }), "--gpus is 12, wanted whole hosts of 8");
  EXPECT_EQ(message([](W* w) { w->network = {"torus", 7}; }), "--gpus is 7, wanted a product a x b for a torus");
  EXPECT_EQ(message([](W* w) { w->network.gpus = 5000; }), "--gpus is 5000, wanted 2 to 4096");
  EXPECT_EQ(message([](W* w) { w->network = {"nvswitch(8)", 4}; }), "--gpus is 4, nvswitch(8) has 8");
  EXPECT_EQ(message([](W* w) {
              w->network = {"nvswitch(8)", 8, 9};
            }),
            "--link is for torus and rail, --network is nvswitch(8), which says it itself");
  EXPECT_EQ(message([](W* w) { w->rule = "sgd"; }),
            "--rule is sgd, wanted all, ddp, local_sgd, slow_mo, diloco, co2, eager, streaming");
  TransformerWords transformer;
  transformer.chunks = 1;
  EXPECT_THROW(sim_graph_transformer(transformer), InvalidArgument);
  transformer.chunks = 4;
  transformer.straggler = 2;
  transformer.run.tensor = transformer.run.pipeline = 1 << 16;  // the product is 0 in 32 bits
  EXPECT_THROW(sim_graph_transformer(transformer), InvalidArgument);
  transformer.run.tensor = transformer.run.pipeline = (1 << 16) + 1;  // and that one 131073
  EXPECT_THROW(sim_graph_transformer(transformer), InvalidArgument);
  MoeWords moe;
  moe.counts = "nowhere.json";
  EXPECT_THROW(sim_graph_moe(moe), IoError);
}

TEST(SimValidateCommand, ExitCodeSaysWhetherARequiredRowMisses) {
  ValidateWords words;
  words.golden = OVERLACE_SOURCE_DIR "/tests/golden";
  words.ids = {"V12"};
  words.json = "-";
  EXPECT_EQ(printed_rows([&] { return sim_validate(words); }).as_array().size(), 1U);
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
