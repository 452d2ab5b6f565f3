#include "src/spec/expr.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <unordered_map>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/base/status.h"

namespace overlace::spec {
namespace {

constexpr size_t kMaxParsedTexts = 4096;  // those of all families are a few hundred; what users write has no end

[[noreturn]] void throw_at(std::string_view text, size_t position, std::string_view why) {
  throw_error(Errc::bad_schedule, base::format("expression \"{}\", column {}: {}", text, position + 1, why));
}

int arity(ExprOp op) {
  switch (op) {
    case ExprOp::literal:
    case ExprOp::name:
      return 0;
    case ExprOp::table:
    case ExprOp::neg:
      return 1;
    default:
      return 2;
  }
}

/// Recursive descent: sum := product (+|- product)*; product := unary (*|/|% unary)*; unary := -unary | atom.
class Parser {
 public:
  Parser(std::string_view text, std::vector<ExprStep>* steps, std::vector<std::string>* names,
         std::vector<std::string>* tables)
      : text_(text), steps_(steps), names_(names), tables_(tables) {}

  void parse() {
    sum();
    skip_space();
    if (at_ != text_.size()) fail("unexpected character");
  }

 private:
  [[noreturn]] void fail(std::string_view why) { throw_at(text_, at_, why); }
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(base::format("wanted '{}'", c));
  }
  void emit(ExprOp op, int64_t value = 0) {
    steps_->push_back({op, value});
    depth_ += 1 - arity(op);
    if (depth_ > kMaxExprDepth) fail("too deeply nested");
  }
  void enter() {
    if (++nesting_ > kMaxExprDepth) fail("too deeply nested");
  }

  void sum() {
    enter();
    product();
    for (;;) {
      if (accept('+'))
        product(), emit(ExprOp::add);
      else if (accept('-'))
        product(), emit(ExprOp::sub);
      else
        break;
    }
    --nesting_;
  }
  void product() {
    unary();
    for (;;) {
      if (accept('*'))
        unary(), emit(ExprOp::mul);
      else if (accept('/'))
        unary(), emit(ExprOp::div);
      else if (accept('%'))
        unary(), emit(ExprOp::mod);
      else
        break;
    }
  }
  void unary() {
    enter();
    if (accept('-'))
      unary(), emit(ExprOp::neg);
    else
      atom();
    --nesting_;
  }
  void atom() {
    const char c = peek();
    if (accept('(')) {
      sum();
      expect(')');
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      number();
    } else if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      word();
    } else {
      fail(c == '\0' ? "wanted a number, a name or '(', got the end" : "wanted a number, a name or '('");
    }
  }
  void number() {
    int64_t value = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value)) {
        fail("number beyond 64 bits");
      }
      ++at_;
    }
    emit(ExprOp::literal, value);
  }
  void word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (accept('[')) {
      sum();
      expect(']');
      emit(ExprOp::table, index_of(tables_, name));
    } else if (accept('(')) {
      const ExprOp op = name == "min"       ? ExprOp::min
                        : name == "max"     ? ExprOp::max
                        : name == "ceildiv" ? ExprOp::ceildiv
                                            : ExprOp::literal;
      if (op == ExprOp::literal) {
        at_ = begin;
        fail(base::format("unknown function '{}' (known: min, max, ceildiv)", name));
      }
      sum();
      expect(',');
      sum();
      expect(')');
      emit(op);
    } else {
      emit(ExprOp::name, index_of(names_, name));
    }
  }
  static int64_t index_of(std::vector<std::string>* list, std::string_view name) {
    const auto it = std::find(list->begin(), list->end(), name);
    if (it != list->end()) return it - list->begin();
    list->emplace_back(name);
    return static_cast<int64_t>(list->size()) - 1;
  }

  std::string_view text_;
  std::vector<ExprStep>* steps_;
  std::vector<std::string>*names_, *tables_;
  size_t at_ = 0;
  int depth_ = 0, nesting_ = 0;
};

int64_t floor_mod(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest < 0 ? rest + (b < 0 ? -b : b) : rest;
}

int64_t apply(ExprOp op, int64_t a, int64_t b, ExprFault* fault) {
  int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case ExprOp::add:
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case ExprOp::sub:
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case ExprOp::mul:
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    case ExprOp::min:
      return std::min(a, b);
    case ExprOp::max:
      return std::max(a, b);
    default:  // div, mod, ceildiv
      if (b == 0) return *fault = ExprFault::zero_divisor, 0;
      if (a == INT64_MIN && b == -1) return *fault = ExprFault::overflow, 0;
      if (op == ExprOp::mod) return floor_mod(a, b);
      if (op == ExprOp::ceildiv) return a / b + (a % b != 0 && (a < 0) == (b < 0) ? 1 : 0);
      if (a % b != 0) *fault = ExprFault::inexact;
      return a / b;
  }
  if (overflow) *fault = ExprFault::overflow;
  return out;
}

template <class Name, class Table>
int64_t run_steps(const std::vector<ExprStep>& steps, ExprFault* fault, Name name, Table table) {
  int64_t stack[kMaxExprDepth];
  stack[0] = 0;
  int top = -1;
  for (const ExprStep& step : steps) {
    switch (step.op) {
      case ExprOp::literal:
        stack[++top] = step.value;
        break;
      case ExprOp::name:
        stack[++top] = name(static_cast<size_t>(step.value));
        break;
      case ExprOp::table: {
        const std::vector<int64_t>& cells = table(static_cast<size_t>(step.value));
        if (stack[top] < 0 || stack[top] >= static_cast<int64_t>(cells.size())) {
          *fault = ExprFault::outside_table;
          return 0;
        }
        stack[top] = cells[static_cast<size_t>(stack[top])];
        break;
      }
      case ExprOp::neg:
        stack[top] = apply(ExprOp::sub, 0, stack[top], fault);
        break;
      default:
        stack[top - 1] = apply(step.op, stack[top - 1], stack[top], fault);
        --top;
    }
    if (*fault != ExprFault::none) return 0;
  }
  return stack[0];
}

}  // namespace

const char* fault_text(ExprFault fault) {
  switch (fault) {
    case ExprFault::none:
      return "no fault";
    case ExprFault::inexact:
      return "division is not exact";
    case ExprFault::zero_divisor:
      return "division by zero";
    case ExprFault::outside_table:
      return "index outside its table";
    case ExprFault::overflow:
      return "overflow of 64 bits";
  }
  return "?";
}

/// Schedules of a family are made of the same texts, whatever their sizes are: each is parsed once, and shared.
std::shared_ptr<const Expr::Node> Expr::parsed(std::string_view text) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<std::string_view, std::shared_ptr<const Node>>;
  {
    const std::lock_guard lock(mutex);
    if (const auto it = known.find(text); it != known.end()) return it->second;
  }
  const auto node = std::make_shared<Node>();
  node->text = text;
  Parser(node->text, &node->steps, &node->names, &node->tables).parse();
  const std::lock_guard lock(mutex);
  if (known.size() >= kMaxParsedTexts) known.clear();
  return known.emplace(node->text, node).first->second;
}

Expr::Expr() {
  static const Expr zero(int64_t{0});
  node_ = zero.node_;
}

Expr::Expr(int64_t value) {
  const auto node = std::make_shared<Node>();
  node->text = std::to_string(value);
  node->steps.push_back({ExprOp::literal, value});
  node_ = node;
}

Expr::Expr(std::string_view text) : node_(parsed(text)) {}

const std::string& Expr::text() const { return node_->text; }

int64_t Expr::eval(const Env& env, const Tables& tables) const {
  auto unknown = [this](std::string_view kind, const std::string& name) {
    throw_error(Errc::bad_schedule, base::format("expression \"{}\": unknown {} '{}'", text(), kind, name));
  };
  ExprFault fault = ExprFault::none;
  const int64_t value = run_steps(
      node_->steps, &fault,
      [&](size_t i) {
        const auto it = env.find(node_->names[i]);
        if (it == env.end()) unknown("name", node_->names[i]);
        return it->second;
      },
      [&](size_t i) -> const std::vector<int64_t>& {
        const auto it = tables.find(node_->tables[i]);
        if (it == tables.end()) unknown("table", node_->tables[i]);
        return it->second;
      });
  if (fault != ExprFault::none) {
    throw_error(Errc::bad_schedule, base::format("expression \"{}\": {}", text(), fault_text(fault)));
  }
  return value;
}

int Symbols::slot(std::string_view name) {
  if (const auto it = slots_.find(name); it != slots_.end()) return it->second;
  values_.push_back(0);
  return slots_.emplace(std::string(name), static_cast<int>(values_.size()) - 1).first->second;
}

int Symbols::find(std::string_view name) const {
  const auto it = slots_.find(name);
  return it == slots_.end() ? -1 : it->second;
}

void Symbols::erase(std::string_view name) {
  if (const auto it = slots_.find(name); it != slots_.end()) slots_.erase(it);
}

const std::vector<int64_t>* Symbols::table(std::string_view name) const {
  const auto it = tables_.find(name);
  return it == tables_.end() ? nullptr : &it->second;
}

BoundExpr::BoundExpr(const Expr& expr, const Symbols& symbols) : text_(&expr.node_->text), steps_(&expr.node_->steps) {
  for (const std::string& name : expr.node_->names) {
    slots_.push_back(symbols.find(name));
    if (slots_.back() < 0 && unknown_.empty()) unknown_ = "name '" + name + "'";
  }
  for (const std::string& name : expr.node_->tables) {
    tables_.push_back(symbols.table(name));
    if (tables_.back() == nullptr && unknown_.empty()) unknown_ = "table '" + name + "'";
  }
}

int BoundExpr::last_slot() const { return slots_.empty() ? 0 : *std::max_element(slots_.begin(), slots_.end()); }

int64_t BoundExpr::eval(const int64_t* values, ExprFault* fault) const {
  return run_steps(
      *steps_, fault, [&](size_t i) { return values[static_cast<size_t>(slots_[i])]; },
      [&](size_t i) -> const std::vector<int64_t>& { return *tables_[i]; });
}

}  // namespace overlace::spec
