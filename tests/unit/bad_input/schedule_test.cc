// Expressions, make_schedule and schedules as JSON.
#include "overlace/schedule.h"

#include "tests/unit/bad_input/bad_input.h"

namespace overlace::bad_input {
namespace {

using spec::Expr;
using spec::make_schedule;
using spec::OpSpec;
using spec::Schedule;

class BadSchedule : public BadInput {};
TEST_P(BadSchedule, IsRefusedInTheseWords) { expect_refusal(); }

Case expression(const char* name, const std::string& text, const char* why) {
  return {name, [text] { (void)Expr(text); }, Errc::bad_schedule, "expression \"" + text + "\", " + why};
}

Case evaluation(const char* name, const std::string& text, const char* why) {
  return {name,
          [text] {
            (void)Expr(text).eval({{"M", 7}}, {{"off", {0, 7}}});
          },
          Errc::bad_schedule, "expression \"" + text + "\": " + why};
}

const Case kExpressions[] = {
    expression("ExprEmpty", "", "column 1: wanted a number, a name or '(', got the end"),
    expression("ExprBlank", "  ", "column 3: wanted a number, a name or '(', got the end"),
    expression("ExprEndsAfterPlus", "1+", "column 3: wanted a number, a name or '(', got the end"),
    expression("ExprOpenParenthesis", "(1", "column 3: wanted ')'"),
    expression("ExprCloseParenthesis", "1)", "column 2: unexpected character"),
    expression("ExprTwoNames", "a b", "column 3: unexpected character"),
    expression("ExprUnknownFunction", "sqrt(4)", "column 1: unknown function 'sqrt' (known: min, max, ceildiv)"),
    expression("ExprOneArgument", "min(1)", "column 6: wanted ','"),
    expression("ExprOpenCall", "ceildiv(1,2", "column 12: wanted ')'"),
    expression("ExprOpenTable", "off[1", "column 6: wanted ']'"),
    expression("ExprBeyond64Bits", "9223372036854775808", "column 19: number beyond 64 bits"),
    expression("ExprFraction", "1.5", "column 2: unexpected character"),
    expression("ExprBareBracket", "[1]", "column 1: wanted a number, a name or '('"),
    expression("ExprText", "\"M\"", "column 1: wanted a number, a name or '('"),
    expression("ExprDeep", std::string(70, '(') + "1" + std::string(70, ')'), "column 33: too deeply nested"),
    expression("ExprManyMinuses", std::string(80, '-') + "1", "column 64: too deeply nested"),
    evaluation("EvalUnknownName", "N+1", "unknown name 'N'"),
    evaluation("EvalUnknownTable", "cut[0]", "unknown table 'cut'"),
    evaluation("EvalOutsideTable", "off[2]", "index outside its table"),
    evaluation("EvalBeforeTable", "off[0-1]", "index outside its table"),
    evaluation("EvalZeroDivisor", "1/(M-7)", "division by zero"),
    evaluation("EvalZeroModulus", "1%(M-7)", "division by zero"),
    evaluation("EvalInexact", "M/2", "division is not exact"),
    evaluation("EvalSumOverflows", "9223372036854775807+M", "overflow of 64 bits"),
    evaluation("EvalProductOverflows", "9223372036854775807*M", "overflow of 64 bits"),
    evaluation("EvalQuotientOverflows", "(0-9223372036854775807-1)/(0-1)", "overflow of 64 bits"),
};

/// The families of an operator, as the message lists them.
std::string known(const char* op) {
  std::string list;
  for (const std::string& family : spec::families(op)) list += (list.empty() ? "" : ", ") + family;
  return list;
}

/// A call of make_schedule with one thing changed.
struct Making {
  OpSpec op{.op = "ag_gemm", .m = 8, .n = 8, .k = 8, .ranks = 2, .row_offsets = {}};
  std::string family = "hetero_fused_1d";
  int degree = 2;
  spec::Params options{};
};
Case making(const char* name, void (*change)(Making&), const std::string& text) {
  return {name,
          [change] {
            Making m;
            change(m);
            (void)make_schedule(m.op, m.family, m.degree, m.options);
          },
          Errc::bad_schedule, text};
}

const Case kFamilies[] = {
    making(
        "MakeUnknownOperator", [](Making& m) { m.op.op = "gemm"; },
        "operator is 'gemm', wanted ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, a2a_gemm or "
        "embedding_a2a"),
    making(
        "MakeUnknownFamily", [](Making& m) { m.family = "fastest"; },
        "ag_gemm: unknown family 'fastest' (known: " + known("ag_gemm") + ")"),
    making(
        "MakeFamilyWithSuffix", [](Making& m) { m.op.op = "gemm_rs", m.family = "serial_rs"; },
        "gemm_rs: unknown family 'serial_rs' (known: " + known("gemm_rs") + ")"),
    making(
        "MakeDegreeZero", [](Making& m) { m.degree = 0; }, "degree is 0, wanted 1 to 1024"),
    making(
        "MakeDegreeNegative", [](Making& m) { m.degree = -3; }, "degree is -3, wanted 1 to 1024"),
    making(
        "MakeDegreeTooLarge", [](Making& m) { m.degree = 1025; }, "degree is 1025, wanted 1 to 1024"),
    making(
        "MakeNoRanks", [](Making& m) { m.op.ranks = 0; },
        "ag_gemm M 8 N 8 K 8 G 0 bf16: wanted M, N, K >= 0 and G >= 1"),
    making(
        "MakeRowsNegative", [](Making& m) { m.op.m = -1; },
        "ag_gemm M -1 N 8 K 8 G 2 bf16: wanted M, N, K >= 0 and G >= 1"),
    making(
        "MakeColumnsNegative", [](Making& m) { m.op.n = -8; },
        "ag_gemm M 8 N -8 K 8 G 2 bf16: wanted M, N, K >= 0 and G >= 1"),
    making(
        "MakeDepthNegative", [](Making& m) { m.op.k = -8; },
        "ag_gemm M 8 N 8 K -8 G 2 bf16: wanted M, N, K >= 0 and G >= 1"),
    making(
        "MakeOffsetsTooFew",
        [](Making& m) {
          m.op.row_offsets = {0, 8};
        },
        "ag_gemm M 8 N 8 K 8 G 2 bf16 ragged: row_offsets has 2 entries, wanted 3"),
    making(
        "MakeOffsetsDescend",
        [](Making& m) {
          m.op.row_offsets = {0, 9, 8};
        },
        "ag_gemm M 8 N 8 K 8 G 2 bf16 ragged: row_offsets go from 0 to 8, wanted 0 to 8 without a step back"),
    making(
        "MakeOffsetsEndElsewhere",
        [](Making& m) {
          m.op.row_offsets = {0, 4, 7};
        },
        "ag_gemm M 8 N 8 K 8 G 2 bf16 ragged: row_offsets go from 0 to 7, wanted 0 to 8 without a step back"),
    making(
        "MakeOffsetsBeginElsewhere",
        [](Making& m) {
          m.op.row_offsets = {1, 4, 8};
        },
        "ag_gemm M 8 N 8 K 8 G 2 bf16 ragged: row_offsets go from 1 to 8, wanted 0 to 8 without a step back"),
    making(
        "MakeUnknownOption", [](Making& m) { m.options["chunks"] = int64_t{2}; },
        "unknown option 'chunks' (known: align, align_k, align_n, ce_queues, credits, hosts, own_degree)"),
    making(
        "MakeHostsOfUnequalSize", [](Making& m) { m.options["hosts"] = int64_t{3}; },
        "hosts is 3, wanted a divisor of the 2 ranks: hosts of equal size"),
    making(
        "MakeAlignZero", [](Making& m) { m.options["align"] = int64_t{0}; },
        "option 'align' is 0, wanted an integer from 1 to 1073741824"),
    making(
        "MakeAlignText", [](Making& m) { m.options["align_n"] = std::string("8"); },
        "option 'align_n' is no integer, wanted an integer from 1 to 1073741824"),
    making(
        "MakeQueuesNegative", [](Making& m) { m.options["ce_queues"] = int64_t{-1}; },
        "option 'ce_queues' is -1, wanted an integer from 1 to 1073741824"),
    making(
        "MakeQueuesTooMany", [](Making& m) { m.options["ce_queues"] = int64_t{1} << 40; },
        "option 'ce_queues' is 1099511627776, wanted an integer from 1 to 1073741824"),
    making(
        "MakeCreditsNumber", [](Making& m) { m.options["credits"] = int64_t{1}; },
        "option 'credits' is no bool, wanted true or false"),
    making(
        "MakeOwnDegreeNoDivisor", [](Making& m) { m.degree = 4, m.options["own_degree"] = int64_t{3}; },
        "own_degree is 3, wanted a divisor of the degree 4"),
};

/// The JSON of a small schedule with one thing replaced.
Case edited_json(const char* name, const std::string& from, const std::string& to, const char* text) {
  return {name,
          [from, to] {
            std::string json = make_schedule(Making().op, "hetero_fused_1d", 2).to_json();
            const size_t at = json.find(from);
            ASSERT_NE(at, json.npos) << from << " is not in " << json;
            (void)Schedule::from_json(json.replace(at, from.size(), to));
          },
          Errc::bad_schedule, text};
}
Case document(const char* name, const std::string& json, const char* text) {
  return {name, [json] { (void)Schedule::from_json(json); }, Errc::bad_schedule, text};
}

const Case kDocuments[] = {
    document("JsonEmpty", "",
             "schedule: line 1, column 1: syntax error while parsing value - unexpected end of input; expected '[', "
             "'{', or a literal"),
    document("JsonList", "[]", "schedule /: got [], wanted an object"),
    document("JsonNumber", "7", "schedule /: got 7, wanted an object"),
    document("JsonTruncated", R"({"op": "ag_gemm", "tasks": [)",
             "schedule: line 1, column 28: syntax error while parsing value - unexpected end of input; expected '[', "
             "'{', or a literal"),
    document("JsonTwiceTheSameKey", R"({"op": "a", "op": "b"})",
             "schedule: line 1, column 16: key \"op\" occurs twice"),
    document("JsonDeep", std::string(200, '['), "schedule: line 1, column 129: nested deeper than 128 levels"),
    document("JsonZeroByte", std::string("{\0}", 3), "schedule: line 1, column 2: zero byte"),
    document("JsonWithoutVersion", R"({"op": "ag_gemm", "family": "x"})",
             "schedule /: got {\"op\":\"ag_gemm\",\"family\":\"x\"}, wanted an object with \"overlace_schedule\""),
    document("JsonWithoutFamily", R"({"op": "ag_gemm", "overlace_schedule": 1})",
             "schedule /: got {\"op\":\"ag_gemm\",\"overlace_schedule\":1}, wanted an object with \"family\""),
    document("JsonTasksObject", R"({"op": "a", "family": "x", "overlace_schedule": 1, "tasks": {}})",
             "schedule /tasks: got {}, wanted an array"),
    document("JsonTableText", R"({"op": "a", "family": "x", "overlace_schedule": 1, "tables": {"off": "0"}})",
             "schedule /tables/off: got \"0\", wanted an array"),
    document("JsonParamList", R"({"op": "a", "family": "x", "overlace_schedule": 1, "params": {"M": [8]}})",
             "schedule /params/M: got [8], wanted a number, a string, true or false"),
    document("JsonConstNull", R"({"op": "a", "family": "x", "overlace_schedule": 1, "consts": {"c": null}})",
             "schedule /consts/c: got null, wanted an integer or an expression"),
    edited_json("JsonVersion2", R"("overlace_schedule":1)", R"("overlace_schedule":2)",
                "schedule /overlace_schedule: got 2, wanted an integer from 1 to 1"),
    edited_json("JsonOpWithBlank", R"("op":"ag_gemm")", R"("op":"ag gemm")",
                "schedule /op: got \"ag gemm\", wanted a name of letters, digits and underscores"),
    edited_json(
        "JsonUnknownKey", R"("deterministic")", R"("determined")",
        "schedule /determined: got true, wanted no such key (known: buffers, consts, deterministic, family, op, "
        "overlace_schedule, params, signals, tables, tasks)"),
    edited_json("JsonFlagNumber", R"("deterministic":true)", R"("deterministic":1)",
                "schedule /deterministic: got 1, wanted true or false"),
    edited_json(
        "JsonUnknownKind", R"("kind":"gemm")", R"("kind":"gem")",
        "schedule /tasks/1/kind: got \"gem\", wanted one of gemm, tiles, copy, reduce, collective, barrier, host, "
        "pool"),
    edited_json("JsonUnknownEngine", R"("engine":"ce")", R"("engine":"dma")",
                "schedule /tasks/0/engine: got \"dma\", wanted one of sm, ce, nic, io, cpu"),
    edited_json(
        "JsonKindNumber", R"("kind":"gemm")", R"("kind":1)",
        "schedule /tasks/1/kind: got 1, wanted one of gemm, tiles, copy, reduce, collective, barrier, host, pool"),
    edited_json("JsonUnknownSpace", R"("symmetric")", R"("shared")",
                "schedule /buffers/3/1: got \"shared\", wanted one of argument, local, symmetric"),
    edited_json(
        "JsonUnknownDtype", R"("bf16")", R"("float")",
        "schedule /buffers/0/2: got \"float\", wanted one of fp64, fp32, fp16, bf16, e4m3, e5m2, i64, i32, i8, u8"),
    edited_json("JsonUnknownScope", R"(["credit",1,"system"])", R"(["credit",1,"galaxy"])",
                "schedule /signals/1/2: got \"galaxy\", wanted one of device, system"),
    edited_json("JsonDepthZero", R"(["M","K"],2])", R"(["M","K"],0])",
                "schedule /buffers/3/4: got 0, wanted an integer from 1 to 1024"),
    edited_json("JsonLoopOfTwo", R"(["p",1,"G"])", R"(["p",1])",
                "schedule /tasks/0/loops/1: got [\"p\",1], wanted [variable, begin, end]"),
    edited_json("JsonLoopVariableDigit", R"(["p",1,"G"])", R"(["1p",1,"G"])",
                "schedule /tasks/0/loops/1/0: got \"1p\", wanted a name of letters, digits and underscores"),
    edited_json("JsonOrderFraction", R"("order":"s*G+p")", R"("order":1.5)",
                "schedule /tasks/0/order: got 1.5, wanted an integer or an expression"),
    edited_json("JsonOrderCut", R"("order":"s*G+p")", R"("order":"s*G+")",
                "schedule /tasks/0/order: expression \"s*G+\", column 5: wanted a number, a name or '(', got the end"),
    edited_json("JsonTableFraction", R"("off":[0,)", R"("off":[0.5,)",
                "schedule /tables/off/0: got 0.5, wanted an integer from -9223372036854775808 to 9223372036854775807"),
    edited_json("JsonUnknownWaitKey", R"("previous":true)", R"("previus":true)",
                "schedule /tasks/0/waits/0/4/previus: got true, wanted no such key (known: each, previous)"),
    edited_json("JsonPreviousNumber", R"("previous":true)", R"("previous":1)",
                "schedule /tasks/0/waits/0/4/previous: got 1, wanted true or false"),
};

INSTANTIATE_TEST_SUITE_P(Expressions, BadSchedule, testing::ValuesIn(kExpressions), case_name);
INSTANTIATE_TEST_SUITE_P(Families, BadSchedule, testing::ValuesIn(kFamilies), case_name);
INSTANTIATE_TEST_SUITE_P(Documents, BadSchedule, testing::ValuesIn(kDocuments), case_name);

}  // namespace
}  // namespace overlace::bad_input
