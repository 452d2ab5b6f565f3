#include "src/base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace overlace::base {
namespace {

std::string parse_error(std::string_view text) {
  const Result<Json> result = Json::parse(text, "f.json");
  if (result.ok()) return "parsed";
  EXPECT_EQ(result.status().code(), Errc::corrupt);
  return result.status().message();
}

TEST(Json, ParsesEachType) {
  const Result<Json> root =
      Json::parse(R"({"n": null, "b": true, "i": -7, "d": 2.5, "s": "a\u00e9\n", "a": [1, [], {}], "o": {"x": 1}})");
  ASSERT_TRUE(root.ok()) << root.status().message();
  EXPECT_TRUE(root->find("n")->is_null());
  EXPECT_TRUE(root->find("b")->as_bool());
  EXPECT_EQ(root->find("i")->as_int(), -7);
  EXPECT_EQ(root->find("i")->as_double(), -7.0);
  EXPECT_EQ(root->find("d")->as_double(), 2.5);
  EXPECT_FALSE(root->find("d")->is_int());
  EXPECT_EQ(root->find("s")->as_string(), "a\xC3\xA9\n");
  EXPECT_EQ(root->find("a")->as_array().size(), 3u);
  EXPECT_EQ(root->find("o")->find("x")->as_int(), 1);
  EXPECT_EQ(root->find("missing"), nullptr);
  EXPECT_EQ(root->find("i")->find("x"), nullptr);
}

TEST(Json, KeepsTheOrderOfKeys) {
  const Result<Json> root = Json::parse(R"({"z":1,"a":2,"m":3})");
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(root->dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(Json, SetAddsAndReplaces) {
  Json value;
  value.set("a", 1).set("b", "x").set("a", 2.0);
  EXPECT_EQ(value.dump(), R"({"a":2.0,"b":"x"})");
  Json list;
  list.push_back(true);
  list.push_back(Json());
  EXPECT_EQ(list.dump(), "[true,null]");
}

TEST(Json, DumpsWithIndentation) {
  const Json value = Json::Object{{"a", Json::Array{1, 2}}, {"e", Json::array()}, {"o", Json::object()}};
  EXPECT_EQ(value.dump(2), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"e\": [],\n  \"o\": {}\n}");
  EXPECT_EQ(Json(Json::Array{1, 2}).dump(0), "[\n1,\n2\n]");
}

TEST(Json, EscapesWhatJsonCannotCarry) {
  EXPECT_EQ(Json("a\"b\\c\nd\te\x01\x7F").dump(), R"("a\"b\\c\nd\te\u0001\u007f")");
  // Each byte that is no part of well-formed UTF-8 becomes a replacement mark; good sequences stay.
  EXPECT_EQ(Json(std::string("\xC3\xA9\xFF\xC3")).dump(), "\"\xC3\xA9\\ufffd\\ufffd\"");
  // The first and the last of each length that UTF-8 allows, and what lies beside them: overlong, surrogates, too
  // large.
  for (const char* good : {"\xE0\xA0\x80", "\xED\x9F\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(Json(good).dump(), '"' + std::string(good) + '"');
  const std::string mark = "\\ufffd";
  for (const char* bad : {"\xE0\x9F\xBF", "\xED\xA0\x80", "\xC1\x80"})
    EXPECT_EQ(Json(bad).dump().substr(0, 1 + 2 * mark.size()), '"' + mark + mark) << bad;
  for (const char* bad : {"\xF0\x8F\x80\x80", "\xF4\x90\x80\x80"})
    EXPECT_EQ(Json(bad).dump(), '"' + mark + mark + mark + mark + '"');
  EXPECT_EQ(Json(std::string("\xED\xA0\x80")).dump(), R"("\ufffd\ufffd\ufffd")");
  EXPECT_TRUE(Json::parse(Json(std::string("\xF0\x9F\x98\x80\xC0\x80")).dump()).ok());
}

TEST(Json, DoublesRoundTrip) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 1800) - 960);
    const Result<Json> back = Json::parse(Json(value).dump());
    ASSERT_TRUE(back.ok());
    ASSERT_FALSE(back->is_int()) << Json(value).dump();
    ASSERT_EQ(back->as_double(), value);
  }
  EXPECT_EQ(Json(1.0).dump(), "1.0");
  EXPECT_EQ(Json(1e300).dump(), "1e+300");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, IntegersBeyondInt64BecomeDoubles) {
  EXPECT_EQ(Json::parse("9223372036854775807")->as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Json::parse("-9223372036854775808")->as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(Json::parse("9223372036854775808")->is_int());
  EXPECT_EQ(Json::parse("18446744073709551615")->as_double(), 18446744073709551615.0);
  EXPECT_EQ(Json::parse("-1e19")->as_double(), -1e19);
}

TEST(Json, ErrorsNameSourceLineColumnAndReason) {
  const std::string text = parse_error("{\n  \"a\": 1,\n  \"b\": tru\n}");
  EXPECT_NE(text.find("f.json: line 3, column"), std::string::npos) << text;
  EXPECT_NE(text.find("invalid literal"), std::string::npos) << text;
  EXPECT_EQ(text.find("[json.exception"), std::string::npos) << text;
}

TEST(Json, RefusesARepeatedKey) {
  EXPECT_EQ(parse_error("{\"a\": 1,\n \"b\": {\"a\": 1}, \"a\": 2}"),
            "f.json: line 2, column 19: key \"a\" occurs twice");
  EXPECT_EQ(parse_error(R"({"a": 1, "\u0061": 2})"), "f.json: line 1, column 17: key \"a\" occurs twice");
}

TEST(Json, LimitsDepth) {
  const std::string deep(128, '['), shut(128, ']');
  EXPECT_TRUE(Json::parse(deep + shut).ok());
  EXPECT_EQ(parse_error("[" + deep + shut + "]"), "f.json: line 1, column 129: nested deeper than 128 levels");
  EXPECT_NE(parse_error(std::string(1000000, '[')).find("deeper"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 200; ++i) objects += "{\"a\":";
  EXPECT_NE(parse_error(objects).find("deeper"), std::string::npos);
}

TEST(Json, RefusesMalformedText) {
  for (const char* text : {"",        " ",           "{",      "[1,",   "[1,]", "{\"a\"}",    "{\"a\":}",
                           "{a:1}",   "nul",         "01",     "+1",    "1.",   ".5",         "\"abc",
                           "\"\\x\"", "\"\\ud800\"", "\"\n\"", "[1] 2", "\xFF", "\"\xC3\"",   "1e999",
                           "NaN",     "// c\n1",     "'a'",    "[1}",   "}",    "{\"a\":1,}", "\"\xED\xA0\x80\""})
    EXPECT_NE(parse_error(text), "parsed") << text;
  EXPECT_NE(parse_error(std::string_view("1\0", 2)), "parsed");
}

TEST(Json, EveryPrefixOfADocumentIsAnErrorOrAValue) {
  const std::string text = R"({"a": [1, -2.5e3, "x\u00e9\"", true, null], "b": {"c": {}}})";
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(Json::parse(std::string_view(text).substr(0, n)).ok()) << n;
  EXPECT_TRUE(Json::parse(text).ok());
}

TEST(Json, WrongTypeIsOurBug) {
  EXPECT_THROW(Json(1).as_string(), Internal);
  EXPECT_THROW(Json("x").as_int(), Internal);
  EXPECT_THROW(Json(1.5).as_int(), Internal);
  EXPECT_THROW(Json("x").as_double(), Internal);
  EXPECT_THROW(Json(1).as_bool(), Internal);
  EXPECT_THROW(Json(1).as_array(), Internal);
  EXPECT_THROW(Json(1).as_object(), Internal);
  EXPECT_THROW(Json(1).set("a", 1), Internal);
}

TEST(Json, ComparesByValue) {
  EXPECT_EQ(*Json::parse("{\"a\":[1,2]}"), (Json::Object{{"a", Json::Array{1, 2}}}));
  EXPECT_FALSE(Json(1) == Json(1.0));
  EXPECT_EQ(Json(1).type_name(), "an integer");
  EXPECT_EQ(Json::object().type_name(), "an object");
}

}  // namespace
}  // namespace overlace::base
