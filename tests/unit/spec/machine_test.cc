#include "src/spec/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "overlace/error.h"
#include "src/spec/fusable.h"

namespace overlace::spec {
namespace {

std::string machine_refusal(const std::string& text) {
  try {
    (void)machine_from_json(text, "m.json");
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "taken";
}

std::string with(const std::string& members) {
  return R"({"overlace_machine":1,"name":"x")" + (members.empty() ? "" : "," + members) + "}";
}

TEST(Machine, ShippedOnesComeBackFromTheirText) {
  ASSERT_EQ(shipped_machines(), (std::vector<std::string>{"cpu2", "h200x2", "h200x2_calibrated", "h200x4"}));
  for (const std::string& name : shipped_machines()) {
    const Machine machine = find_machine(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_TRUE(machine.has_costs()) << name;
    EXPECT_EQ(machine_from_json(to_json(machine), name), machine);
    EXPECT_EQ(machine_from_json(to_json(machine, 2), name), machine);
    const std::string file = std::string(OVERLACE_SOURCE_DIR) + "/machine/" + name + ".json";
    EXPECT_EQ(find_machine(file), machine);
  }
}

TEST(Machine, LimitsAloneAreAMachine) {
  const Machine machine = machine_from_json(with(R"("ranks":3,"sms":7)"));
  EXPECT_EQ(machine.ranks, 3);
  EXPECT_EQ(machine.sms, 7);
  EXPECT_EQ(machine.max_connections, Machine{}.max_connections);
  EXPECT_FALSE(machine.has_costs());
}

/// Files from before there was a choice are of Hopper: their digests, which measurements name, stay.
TEST(Machine, IsOfHopperUnlessItSaysOtherwise) {
  Machine machine = find_machine("h200x4");
  EXPECT_EQ(machine.compute_capability, 90);
  EXPECT_TRUE(has_fused_kernels(machine));
  EXPECT_EQ(to_json(machine).find("compute_capability"), std::string::npos);
  const std::string before = digest(machine);
  machine.compute_capability = 80;
  EXPECT_FALSE(has_fused_kernels(machine));
  EXPECT_EQ(machine_from_json(to_json(machine)).compute_capability, 80);
  EXPECT_NE(digest(machine), before);
  EXPECT_FALSE(has_fused_kernels(find_machine("cpu2")));
  EXPECT_EQ(machine_refusal(with(R"("compute_capability":"8.0")")),
            "m.json: /compute_capability: got \"8.0\", wanted an integer from 1 to 999");
}

TEST(Machine, ATeamIsAsItsFirstGpuWithoutKernels) {
  EXPECT_EQ(capability_of_team(std::vector<int>{90, 90}), 90);
  EXPECT_EQ(capability_of_team(std::vector<int>{90, 100, 80}), 100);
  EXPECT_EQ(capability_of_team(std::vector<int>{80, 90}), 80);
  EXPECT_EQ(capability_of_team(std::vector<int>{0, 90}), 90) << "CPU ranks say nothing";
  EXPECT_EQ(capability_of_team({}), 90);
  EXPECT_EQ(capability_text(89), "compute capability 8.9");
  EXPECT_EQ(capability_text(120), "compute capability 12.0");
}

TEST(Machine, DigestChangesWithNumbersNotWithTheDate) {
  Machine machine = find_machine("h200x4");
  const std::string before = digest(machine);
  EXPECT_EQ(before.size(), 32u);
  machine.date = "2031-01-01";
  machine.git = "0123";
  EXPECT_EQ(digest(machine), before);
  machine.copy.start_us.value += 0.125;
  EXPECT_NE(digest(machine), before);
}

/// No schedule is chosen by them: whoever measures a disk keeps the plans that were made before.
TEST(Machine, FiguresOfTheHostAreReadAndChangeNoDigest) {
  Machine machine = find_machine("h200x4");
  const std::string before = digest(machine);
  EXPECT_EQ(to_json(machine).find("storage"), std::string::npos);
  machine.storage.read_GBps = {{{4096, 0.4}, {1048576, 1.7}}, Source::measured};
  machine.storage.read_kIOPS = {98, Source::measured};
  machine.storage.write_GBps = {0.93};
  machine.storage.start_us = {31};
  machine.host.to_device_us = {{{1048576, 28}, {1073741824, 19500}}, Source::measured};
  EXPECT_EQ(machine_from_json(to_json(machine)), machine);
  EXPECT_EQ(digest(machine), before);
  EXPECT_EQ(machine_refusal(with(R"("storage":{"read_GBps":{"1048576":1.7}})")),
            "m.json: /storage/read_GBps/x: got null, wanted \"bytes\", the unit of the sizes");
  EXPECT_EQ(machine_refusal(with(R"("storage":{"write":[1,"prior"]})")),
            "m.json: /storage/write: got [1,\"prior\"], wanted a key with its unit: write_GBps");
  EXPECT_NE(machine_refusal(with(R"("host":{"to_device_us":{"x":"bytes","source":"prior","points":[[1,2],[2,1]]}})"))
                .find("it must not fall as sizes grow"),
            std::string::npos);
}

TEST(Machine, CurvesAreLinearOnLogarithmicAxes) {
  const Curve curve{{{10, 2}, {1000, 200}, {4000, 100}}, Source::measured};
  EXPECT_DOUBLE_EQ(curve.at(1), 2);  // flat below
  EXPECT_DOUBLE_EQ(curve.at(10), 2);
  EXPECT_NEAR(curve.at(100), 20, 1e-12);
  EXPECT_NEAR(curve.at(2000), 100 * std::sqrt(2.0), 1e-9);
  EXPECT_NEAR(curve.at(16000), 50, 1e-9);  // the last slope goes on
  EXPECT_DOUBLE_EQ((Curve{{{5, 3}}, Source::prior}).at(77), 3);
}

TEST(Machine, EveryNumberSaysWhereItComesFrom) {
  const Machine machine =
      machine_from_json(with(R"("link":{"egress_GBps":[1.5,"measured"],"ingress_GBps":[2,"prior"]},"x-note":[1])"));
  EXPECT_EQ(machine.link.egress_GBps, (Figure{1.5, Source::measured}));
  EXPECT_EQ(machine.link.ingress_GBps, (Figure{2, Source::prior}));
}

/// Files from before it was a figure have the value that stood in the planner, and their digest.
TEST(Machine, SaysHowMuchOfTheGemmGroupsMayTravel) {
  Machine machine = find_machine("h200x4");
  EXPECT_EQ(machine.copy.most_grouped.value, 1.1);
  EXPECT_EQ(to_json(machine).find("most_grouped"), std::string::npos);
  EXPECT_EQ(machine_from_json(with("")).copy.most_grouped.value, 1.1);
  const std::string before = digest(machine);
  machine.copy.most_grouped = {0.5, Source::measured};
  EXPECT_EQ(machine_from_json(to_json(machine)), machine);
  EXPECT_NE(digest(machine), before);
  EXPECT_EQ(
      machine_refusal(with(R"("copy":{"most_grouped":[0,"prior"]})")),
      "m.json: /copy/most_grouped: got [0,\"prior\"], wanted [value, \"measured\" or \"prior\"], the value > 0 and "
      "<= 100");
}

/// Files from before it was a figure have kernels that took no more.
TEST(Machine, SaysHowMuchFasterFp8IsAndWhetherThatWasMeasured) {
  Machine machine = machine_from_json(with(""));
  EXPECT_EQ(machine.gemm.fp8_speedup, (Figure{1.8, Source::prior}));
  EXPECT_EQ(to_json(machine).find("fp8_speedup"), std::string::npos);
  machine = machine_from_json(with(R"("gemm":{"fp8_speedup":[1.6,"measured"]})"));
  EXPECT_EQ(machine.gemm.fp8_speedup, (Figure{1.6, Source::measured}));
  EXPECT_EQ(machine_from_json(to_json(machine)), machine);
  EXPECT_NE(machine_refusal(with(R"("gemm":{"fp8_speedup":[0,"prior"]})")).find("/gemm/fp8_speedup: got [0"),
            std::string::npos);
}

TEST(Machine, SaysWithHowManyRowsOneShotWasMeasured) {
  EXPECT_EQ(find_machine("h200x2_calibrated").few_rows.measured_rows, (Figure{256, Source::measured}));
  EXPECT_EQ(machine_from_json(with("")).few_rows.measured_rows.value, 64);
  Machine machine = machine_from_json(with(R"("few_rows":{"measured_rows":[256,"measured"]})"));
  EXPECT_EQ(machine.few_rows.measured_rows, (Figure{256, Source::measured}));
  EXPECT_EQ(machine_from_json(to_json(machine)), machine);
}

TEST(Machine, RefusesWithFileKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(
      machine_refusal(with(R"("link":{"egress_GBps":[0,"prior"]})")),
      "m.json: /link/egress_GBps: got [0,\"prior\"], wanted [value, \"measured\" or \"prior\"], the value > 0 and "
      "<= 1e+07");
  EXPECT_EQ(machine_refusal(with(R"("gemm":{"tiles":3})")),
            "m.json: /gemm/tiles: got 3, wanted a list of at most 1000 objects");
  std::string many = R"("gemm":{"tiles":[0)";
  for (int i = 0; i < 1000; ++i) many += ",0";
  EXPECT_TRUE(machine_refusal(with(many + "]}")).ends_with("wanted a list of at most 1000 objects"));
  EXPECT_EQ(machine_refusal(with(R"("gemm":{"tiles":[{"cols":64,"wave_us":[1,"prior"],"k_ns":[1,"prior"]}]})")),
            "m.json: /gemm/tiles/0/rows: got null, wanted an integer from 1 to 65536");
  EXPECT_EQ(machine_refusal(with(R"("link":{"egress_GBps":[-3,"prior"]})")),
            "m.json: /link/egress_GBps: got [-3,\"prior\"], wanted [value, \"measured\" or \"prior\"], the value > 0 "
            "and <= 1e+07");
  EXPECT_EQ(machine_refusal(with(R"("link":{"egress":[1,"prior"]})")),
            "m.json: /link/egress: got [1,\"prior\"], wanted a key with its unit: egress_GBps");
  EXPECT_EQ(machine_refusal(with(R"("link":{"width":[1,"prior"]})")),
            "m.json: /link/width: got [1,\"prior\"], wanted no such key (known: egress_GBps, ingress_GBps)");
  EXPECT_EQ(machine_refusal(with(R"("sms":0)")), "m.json: /sms: got 0, wanted an integer from 1 to 65536");
  EXPECT_EQ(machine_refusal(with(R"("link":{"egress_GBps":[1,"guessed"]})")),
            "m.json: /link/egress_GBps: got \"guessed\", wanted \"measured\" or \"prior\"");
  EXPECT_EQ(machine_refusal(with(R"("contention":[{"slowed":"gemm_tensor","by":"tea","factor":[1,"prior"]}])")),
            "m.json: /contention/0/by: got \"tea\", wanted one of gemm_tensor, gemm_mem, gemv, gather, reduce, ce_out, "
            "ce_in, sm_copy, epi_store, epi_red, spin");
  EXPECT_EQ(machine_refusal(with(R"("sms":65536)")), "taken");
  EXPECT_EQ(machine_refusal(with(R"("sms":65537)")), "m.json: /sms: got 65537, wanted an integer from 1 to 65536");
  const auto driver = [](size_t letters) { return with(R"("driver":")" + std::string(letters, 'd') + "\""); };
  EXPECT_EQ(machine_refusal(driver(200)), "taken");
  EXPECT_TRUE(machine_refusal(driver(201)).ends_with("wanted a string of at most 200 characters"));
  EXPECT_EQ(machine_refusal(with(R"("driver":7)")),
            "m.json: /driver: got 7, wanted a string of at most 200 characters");
  EXPECT_EQ(machine_refusal(R"({"overlace_machine":2})"), "m.json: /overlace_machine: got 2, wanted 1");
  const auto tiles = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) list += i == 0 ? "7" : ",7";
    return with("\"gemm\":{\"tiles\":[" + list + "]}");
  };
  EXPECT_NE(machine_refusal(tiles(1001)).find("wanted a list of at most 1000 objects"), std::string::npos);
  EXPECT_EQ(machine_refusal(tiles(1000)), "m.json: /gemm/tiles/0: got 7, wanted an object");
  EXPECT_EQ(machine_refusal("[]"), "m.json: : got [], wanted an object");
}

TEST(Machine, RefusesCurvesThatDoNotGrow) {
  const auto curve = [](const std::string& points) {
    return with(R"("copy":{"pair_us":{"x":"bytes","source":"prior","points":)" + points + "}}");
  };
  EXPECT_EQ(machine_refusal(curve("[[1,2],[2,3]]")), "taken");
  EXPECT_EQ(machine_refusal(curve("[[1,2],[1,3]]")),
            "m.json: /copy/pair_us/points/1: got [1,3], wanted a size > 1, that before");
  EXPECT_EQ(machine_refusal(curve("[[1,2],[2,1.5]]")),
            "m.json: /copy/pair_us/points/1: got [2,1.5], wanted a value >= 2, that before: it must not fall as sizes "
            "grow");
  EXPECT_EQ(machine_refusal(curve("[[1,0]]")),
            "m.json: /copy/pair_us/points/0: got [1,0], wanted a value > 0 and <= 1e+09");
  EXPECT_EQ(machine_refusal(curve("[[0,1]]")),
            "m.json: /copy/pair_us/points/0: got [0,1], wanted a size > 0 and <= 1e18");
  EXPECT_EQ(machine_refusal(curve("[[1e18,1]]")), "taken");
  EXPECT_NE(machine_refusal(curve("[[1.1e18,1]]")), "taken");
  EXPECT_EQ(machine_refusal(curve("[]")), "m.json: /copy/pair_us/points: got [], wanted 1 to 1000 pairs [size, value]");
  EXPECT_EQ(machine_refusal(with(R"("copy":{"pair_us":{"x":"rows","source":"prior","points":[[1,1]]}})")),
            "m.json: /copy/pair_us/x: got \"rows\", wanted \"bytes\", the unit of the sizes");
}

TEST(Machine, UnknownNamesAndFilesAreRefused) {
  EXPECT_THROW((void)find_machine("no/such/file.json"), IoError);
  try {
    (void)find_machine("h300");
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(
        e.what(),
        "machine: got h300, wanted a file that ends in .json or one of cpu2, h200x2, h200x2_calibrated, h200x4");
  }
}

}  // namespace
}  // namespace overlace::spec
