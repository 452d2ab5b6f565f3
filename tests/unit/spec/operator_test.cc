// The table of operators: what it answers, and values that it refuses.
#include "overlace/operator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "overlace/error.h"
#include "src/base/json.h"
#include "src/spec/fusable.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

void make_nothing(Schedule*, const OpSpec&, const FamilyOptions&) {}
void make_nothing_alone(Schedule*, const OpSpec&, Purpose) {}
Meaning mean_nothing(const Schedule&, int, int) { return {}; }

constexpr Arg kArgs[] = {{"X", "x", Role::input, "M", "N"}, {"Y", "y", Role::output, "M", "N"}};
constexpr FamilyDef kFamilies[] = {{.name = "library", .make = make_nothing}, {.name = "serial", .make = make_nothing}};
constexpr FamilyDef kTurned[] = {{.name = "serial", .make = make_nothing}, {.name = "library", .make = make_nothing}};
constexpr FamilyDef kUnmade[] = {
    {.name = "library", .make = make_nothing}, {.name = "serial", .make = make_nothing}, {.name = "fast"}};
constexpr FieldDef kSizes[] = {{"M", FieldType::integer, "rows"}};
const OperatorDef kComplete = {.name = "unit_test",
                               .summary = "nothing",
                               .args = kArgs,
                               .families = kFamilies,
                               .make_alone = make_nothing_alone,
                               .meaning = mean_nothing};

/// What add_operator says of a value with one thing changed. It keeps none.
std::string operator_refusal(void (*change)(OperatorDef&)) {
  OperatorDef op = kComplete;
  change(op);
  try {
    add_operator(op);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "";
}

TEST(Operator, IsRefusedWhereItLacksSomething) {
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.name = ""; }), "operator '' lacks a name");
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.name = "gemm_rs"; }),
            "operator 'gemm_rs' lacks a name of its own: this one is known");
  const std::string first = "operator 'unit_test' lacks the families library and serial, first";
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.families = {}; }), first);
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.families = kTurned; }), first);
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.families = kUnmade; }),
            "operator 'unit_test' lacks make of family fast");
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.fields = kSizes; }),
            "operator 'unit_test' lacks another name for field M, which every schedule has");
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.args = {}; }), "operator 'unit_test' lacks an input");
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.args = op.args.first(1); }),
            "operator 'unit_test' lacks an output");
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.make_alone = nullptr; }),
            "operator 'unit_test' lacks make_alone");
  EXPECT_EQ(operator_refusal([](OperatorDef& op) { op.meaning = nullptr; }), "operator 'unit_test' lacks meaning");
  EXPECT_EQ(find_operator("unit_test"), nullptr);
}

TEST(Problem, KeysAreEqualForEqualProblemsAlone) {
  const OpSpec base{.op = "ag_gemm", .m = 8, .n = 8, .k = 8, .ranks = 2, .row_offsets = {}};
  EXPECT_EQ(key_of(base), key_of(OpSpec(base)));
  std::vector<OpSpec> all = {base};
  const auto add = [&](auto change) {
    all.push_back(base);
    change(all.back());
  };
  add([](OpSpec& op) { op.op = "ag_gemm 8"; });
  add([](OpSpec& op) { op.m = 9; });
  add([](OpSpec& op) { op.n = 9; });
  add([](OpSpec& op) { op.k = 9; });
  add([](OpSpec& op) { op.ranks = 3; });
  add([](OpSpec& op) { op.dtype = DType::fp16; });
  add([](OpSpec& op) { op.out_dtype = DType::fp16; });
  add([](OpSpec& op) { op.b_layout = BLayout::kn; });
  add([](OpSpec& op) { op.bias = true; });
  add([](OpSpec& op) { op.gathered = true; });
  add([](OpSpec& op) { op.activation = Activation::swiglu; });
  add([](OpSpec& op) { op.exchange = Exchange::cols; });
  // The same numbers in another list, and lists whose numbers run into each other.
  add([](OpSpec& op) { op.row_offsets = {0, 4, 8}; });
  add([](OpSpec& op) { op.splits = {0, 4, 8}; });
  add([](OpSpec& op) { op.blocks = {0, 4, 8}; });
  add([](OpSpec& op) { op.splits = {0, 4}, op.blocks = {8}; });
  add([](OpSpec& op) { op.splits = {0}, op.blocks = {4, 8}; });
  add([](OpSpec& op) { op.fields = {{"a", int64_t{1}}}; });
  add([](OpSpec& op) { op.fields = {{"a", std::string("1 b=1:2")}}; });
  add([](OpSpec& op) { op.fields = {{"a", int64_t{1}}, {"b", int64_t{2}}}; });
  std::set<std::string> keys;
  for (const OpSpec& op : all) keys.insert(key_of(op));
  EXPECT_EQ(keys.size(), all.size());
}

TEST(Operator, FieldsOfACallAreThoseThatItDeclares) {
  OperatorDef op = kComplete;
  constexpr FieldDef kFields[] = {{"window", FieldType::integer, "rows"}};
  op.fields = kFields;
  EXPECT_EQ(field_problem(op, {{"window", int64_t{3}}}), "");
  EXPECT_EQ(field_problem(op, {}), "field 'window' is missing, wanted an integer");
  EXPECT_EQ(field_problem(op, {{"window", true}}), "field 'window' is true or false, wanted an integer");
  EXPECT_EQ(field_problem(op, {{"window", int64_t{3}}, {"widow", int64_t{3}}}), "unit_test has no field 'widow'");
}

TEST(Operator, SplitsAreATableOfRowsFromRankToRank) {
  Schedule schedule;
  Task task;
  EXPECT_EQ(splits_table(schedule, task, 2), nullptr);
  task.params["splits"] = std::string("rows");
  EXPECT_EQ(splits_table(schedule, task, 2), nullptr);
  schedule.tables["rows"] = {1, 2, 3, 0};
  ASSERT_NE(splits_table(schedule, task, 2), nullptr);
  EXPECT_EQ(*splits_table(schedule, task, 2), (std::vector<int64_t>{1, 2, 3, 0}));
  EXPECT_EQ(splits_table(schedule, task, 3), nullptr);
  schedule.tables["rows"] = {1, 2, -3, 0};
  EXPECT_EQ(splits_table(schedule, task, 2), nullptr);
}

TEST(Operator, ThoseOfTheLibraryAreWhole) {
  EXPECT_EQ(operator_names(), "ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, a2a_gemm or embedding_a2a");
  EXPECT_EQ(operator_names([](const OperatorDef& op) { return op.flow.gathers; }), "ag_gemm, ag_wgrad or a2a_gemm");
  for (const OperatorDef* op : operators()) {
    std::set<std::string_view> names;
    for (const FamilyDef& family : op->families) {
      EXPECT_TRUE(names.insert(family.name).second) << op->name << " has " << family.name << " twice";
      EXPECT_FALSE(family.form != ClosedForm::none && family.purpose != Purpose::plan) << family.name;
      EXPECT_EQ(has_degree(family.name), family.has_degree) << family.name << " means one thing in all operators";
    }
    for (const Purpose purpose : {Purpose::compute, Purpose::comm, Purpose::limit})
      EXPECT_NE(find_family(op->name, purpose), nullptr) << op->name;
    EXPECT_FALSE(op->summary.empty()) << op->name;
    const bool multiplies =
        std::any_of(op->args.begin(), op->args.end(), [](const Arg& arg) { return arg.has_layout; });
    EXPECT_EQ(op->local_param.empty(), !multiplies) << op->name << ": a GEMM has one size of its own";
  }
}

TEST(Operator, AreDescribedAsJson) {
  const base::Json all = base::Json::parse(operators_json()).value();
  size_t at = 0;
  for (const OperatorDef* def : operators()) {
    const base::Json& op = all.as_array()[at++];
    EXPECT_EQ(op.find("name")->as_string(), def->name);
    EXPECT_EQ(op.find("local")->as_string(), def->local_param);
    EXPECT_EQ(op.find("families")->as_array().size(), def->families.size()) << def->name;
    ASSERT_EQ(op.find("args")->as_array().size(), def->args.size()) << def->name;
    for (size_t i = 0; i < def->args.size(); ++i) {
      const base::Json& arg = op.find("args")->as_array()[i];
      EXPECT_EQ(arg.find("name")->as_string(), def->args[i].call);
      EXPECT_EQ(arg.find("shape")->as_array().size(), def->args[i].columns.empty() ? 1u : 2u);
      EXPECT_FALSE(arg.find("doc")->as_string().empty()) << def->name << " " << def->args[i].call;
    }
  }
  EXPECT_EQ(at, all.as_array().size());
}

TEST(Operator, AnswersForSchedulesByNameAndSuffix) {
  OpSpec op{.op = "gemm_ar", .m = 8, .n = 8, .k = 8, .ranks = 2, .row_offsets = {}};
  Schedule schedule = make_schedule(op, "limit");
  EXPECT_EQ(schedule.family, "limit_ar");
  ASSERT_NE(family_of(schedule), nullptr);
  EXPECT_EQ(family_of(schedule)->purpose, Purpose::limit);
  EXPECT_FALSE(gives_result(schedule));
  EXPECT_TRUE(gives_result(make_schedule(op, "serial")));
  EXPECT_EQ(make_bound(op, Purpose::limit).family, "limit_ar");
  schedule.family = "written by hand";
  EXPECT_EQ(family_of(schedule), nullptr);
  EXPECT_TRUE(gives_result(schedule)) << "a schedule of no family is one that somebody wrote to run it";
  EXPECT_EQ(form_of("gemm_ar", "k_slab"), ClosedForm::none);
  EXPECT_EQ(form_of("ag_gemm", "k_slab"), ClosedForm::slab_kernel);
  EXPECT_EQ(form_of("unknown", "k_slab"), ClosedForm::none);
  op.op = "unknown";
  EXPECT_THROW((void)make_bound(op, Purpose::limit), Error);
}

TEST(Operator, RulesAndTransportsAreAskedForByFunction) {
  for (const OperatorDef* def : test::sized_operators()) {
    const FamilyDef* first = first_by_rule(*def);
    ASSERT_NE(first, nullptr) << def->name;
    EXPECT_EQ(first->rule, 1) << def->name;
    EXPECT_EQ(first->form, ClosedForm::per_shard) << def->name;
    for (const FamilyDef& family : def->families) {
      const OpSpec op{.op = std::string(def->name), .m = 16, .n = 256, .k = 256, .ranks = 2, .row_offsets = {}};
      EXPECT_EQ(takes_one_shot(make_schedule(op, std::string(family.name))), family.form == ClosedForm::small_m_kernel)
          << def->name << " " << family.name;
    }
  }
  EXPECT_EQ(first_by_rule({.name = "none", .summary = "", .args = {}, .families = {}}), nullptr);
}

TEST(Operator, AShapeThatKernelsRefuseSaysWhy) {
  const FusedShape good = {.m = 64, .n = 64, .k = 64, .ranks = 2, .is_small_m = true};
  EXPECT_EQ(fused_problem(good), "");
  const auto problem = [&](auto change) {
    FusedShape shape = good;
    change(shape);
    return fused_problem(shape);
  };
  EXPECT_EQ(problem([](FusedShape& s) { s.n = 12; }), "N 12, K 64; wanted: multiples of 8");
  EXPECT_EQ(problem([](FusedShape& s) { s.k = 4; }), "N 64, K 4; wanted: multiples of 8");
  EXPECT_EQ(problem([](FusedShape& s) { s.ranks = 9; }), "9 ranks; wanted: 2 to 8");
  EXPECT_EQ(problem([](FusedShape& s) { s.ranks = 1; }), "1 ranks; wanted: 2 to 8");
  EXPECT_EQ(problem([](FusedShape& s) { s.m = 257; }), "M 257; wanted: at most 256");
  EXPECT_EQ(problem([](FusedShape& s) { s.m = 257, s.is_small_m = false; }), "");
  const auto swiglu = [](FusedShape& s) { s.activation = Activation::swiglu; };
  EXPECT_EQ(problem(swiglu), "swiglu of few rows; wanted: none");
  EXPECT_EQ(problem([&](FusedShape& s) { swiglu(s), s.n = 72; }), "swiglu of N 72; wanted: a multiple of 16");
  EXPECT_EQ(problem([&](FusedShape& s) { swiglu(s), s.is_small_m = false; }), "");
}

TEST(Operator, OnlyThoseWithAKernelForThemHaveFewTokens) {
  for (const OperatorDef* def : test::sized_operators()) {
    OpSpec op{.op = std::string(def->name), .m = 16, .n = 1024, .k = 1024, .ranks = 2, .row_offsets = {}};
    EXPECT_EQ(has_few_tokens(op), find_family(def->name, ClosedForm::small_m_kernel) != nullptr) << def->name;
    const bool has_them = has_few_tokens(op);
    Machine machine;
    for (const double measured : {64.0, 256.0}) {
      machine.few_rows.measured_rows.value = measured;
      for (const int64_t m : {64, 65, 256, 257}) {
        op.m = m;
        EXPECT_EQ(has_few_tokens(op), has_them && m <= kOneShotTokens) << def->name;
        const double most = gathers(def->name) ? 64 : measured;
        EXPECT_EQ(has_measured_tokens(op, machine), has_them && static_cast<double>(m) <= most) << def->name;
      }
    }
  }
}

}  // namespace
}  // namespace overlace::spec
