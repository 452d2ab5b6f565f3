// The shapes that tests over all families use are ones that each family takes.
#include "tests/unit/ops/shapes.h"

#include <gtest/gtest.h>

#include "src/spec/check.h"

namespace overlace::test {
namespace {

spec::OpSpec wanted_of(const std::string& name, int ranks) {
  spec::OpSpec op;
  op.op = name;
  op.m = 1000, op.n = 512, op.k = 768;
  op.ranks = ranks;
  return op;
}

/// What is measured beside the others gives no result that covers.
spec::CheckOptions without_coverage() {
  spec::CheckOptions options;
  options.coverage = false;
  return options;
}

TEST(ShapeFor, IsTakenByEveryFamilyOfEveryOperator) {
  for (const std::string& name : operators()) {
    ASSERT_TRUE(spec::is_operator(name)) << name;
    ASSERT_NE(spec::operator_names().find(name), std::string_view::npos) << name;
    for (const std::string& family : spec::families(name)) {
      for (const int ranks : {2, 4, 8}) {
        for (const int degree : {1, 2, 4}) {
          const spec::OpSpec wanted = wanted_of(name, ranks);
          const std::optional<spec::OpSpec> op = shape_for(wanted, family, degree);
          ASSERT_TRUE(op.has_value()) << name << " " << family << " q " << degree << " on " << ranks << " ranks";
          const spec::Schedule schedule = spec::make_schedule(*op, family, degree);
          EXPECT_EQ(ops::fused::check_instance(schedule).message(), "");
          EXPECT_TRUE(spec::check(schedule, spec::Machine{}, without_coverage()).ok()) << name << " " << family;
          EXPECT_GE(op->m, ranks) << "a rank without rows does less than the family can";
          EXPECT_EQ(op->n, wanted.n);
          EXPECT_EQ(op->k, wanted.k);
        }
      }
    }
  }
}

TEST(ShapeFor, HasTheRowsThatWereWantedWhereTheFamilyTakesThem) {
  int fewer = 0;
  for (const std::string& name : operators()) {
    for (const std::string& family : families_with_a_result(name)) {
      const spec::OpSpec wanted = wanted_of(name, 2);
      const base::Status all = ops::fused::check_instance(spec::make_schedule(wanted, family, 1));
      const int64_t rows = shape_for(wanted, family, 1).value().m;
      EXPECT_EQ(rows == wanted.m, all.ok()) << name << " " << family << ": " << all.message();
      if (all.ok()) continue;
      ++fewer;
      EXPECT_EQ(family, "one_shot");
      EXPECT_NE(all.message().find("no kernel for M 1000; wanted: at most 256"), std::string::npos) << all.message();
      EXPECT_EQ(rows, 250) << "half of a half: not whole tiles either";
    }
  }
  EXPECT_EQ(fewer, 3) << "one_shot of ag_gemm, gemm_rs and gemm_ar";
}

TEST(ShapeFor, IsNoneWhereNotEvenOneRowIsTaken) {
  spec::OpSpec op = wanted_of("gemm_ar", 2);
  op.k = 12;  // rows of B are not whole 16 bytes
  EXPECT_FALSE(shape_for(op, "one_shot", 1).has_value());
  EXPECT_EQ(shape_for(op, "library", 1).value().m, 1000) << "which has no kernel of its own";
}

}  // namespace
}  // namespace overlace::test
