#include "src/study/validate/validate.h"

#include <gtest/gtest.h>

#include <string>

namespace overlace::study {
namespace {

const std::string kGolden = OVERLACE_SOURCE_DIR "/tests/golden";

TEST(Validate, EveryRowThatMustPassPasses) {
  const auto rows = validate(kGolden, {});
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  for (const ValidationRow& row : *rows) {
    EXPECT_TRUE(row.passes() || !row.is_must)
        << row.id << " " << row.figure << ": " << row.ours << ", accepted " << row.least << " to " << row.most;
  }
}

TEST(Validate, BeatsTheModelThatDoesNothing) {
  for (const char* id : {"V1", "V2", "V3", "V4", "V5"}) {
    const auto rows = validate(kGolden, {id});
    ASSERT_TRUE(rows.ok());
    for (const ValidationRow& row : *rows) EXPECT_LT(row.ours, row.baseline) << row.figure;
  }
}

TEST(Validate, SameBitsEveryTime) {
  const auto first = validate(kGolden, {}), second = validate(kGolden, {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(validation_json(*first).dump(), validation_json(*second).dump());
}

TEST(Validate, AMissIsShownWithItsSize) {
  const std::vector<ValidationRow> rows = {{"V1", "a figure", "%", 10, 17.5, 5, 15, 30},
                                           {"V2", "another", "us", kNone, 1, 0, 2, kNone}};
  EXPECT_TRUE(has_required_miss(rows));
  const std::string table = validation_table(rows);
  EXPECT_NE(table.find("MISS by 2.5"), std::string::npos) << table;
  EXPECT_NE(table.find("+7.5 points"), std::string::npos) << table;
  EXPECT_NE(table.find("2 rows, 1 misses, 1 of them of rows that must pass"), std::string::npos) << table;
  const std::string page = validation_page(rows);
  EXPECT_NE(page.find("| V1 | a figure, % | 10 | 17.5 | +7.5 points | 5 to 15 | 30 | MISS by 2.5 |"), std::string::npos)
      << page;
  const base::Json json = validation_json(rows);
  EXPECT_FALSE(json.as_array()[0].find("pass")->as_bool());
  EXPECT_TRUE(json.as_array()[1].find("published")->is_null());
}

TEST(Validate, ARowThatNeedNotPassIsNoFailure) {
  EXPECT_FALSE(has_required_miss({{"V6", "x", "", 1, 2, 0, 1, kNone, false}}));
}

TEST(Validate, NamesWhatIsWrong) {
  EXPECT_EQ(validate(kGolden, {"V1", "V99"}).status().message(),
            "validate: V99 is no figure, wanted V1, V2, V3, V4, V5, V6, V7, V9, V12");
  EXPECT_EQ(validate("/nowhere", {"V1"}).status().code(), Errc::io);
}

}  // namespace
}  // namespace overlace::study
