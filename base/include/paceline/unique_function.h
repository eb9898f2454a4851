#pragma once
// A move-only callable, with room for small closures inside so that a task needs no allocation.

#include <cassert>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace paceline {

template <class Signature>
class UniqueFunction;

// Like std::function<Result(Args...)>, but it cannot be copied, and takes closures that cannot be copied. Closures of
// up to 64 bytes are stored inside. Not thread-safe.
template <class Result, class... Args>
class UniqueFunction<Result(Args...)> {
 public:
  UniqueFunction() = default;

  // Takes what can be called with Args and gives a Result.
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, UniqueFunction> &&
                                              std::is_invocable_r_v<Result, std::decay_t<F>&, Args...>>>
  UniqueFunction(F&& function) {  // implicit, as for std::function
    using Stored = std::decay_t<F>;
    if constexpr (sizeof(Stored) <= kInline && alignof(Stored) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Stored>) {
      new (storage_) Stored(std::forward<F>(function));
      operations_ = &kInlineOperations<Stored>;
    } else {
      new (storage_) Stored*(new Stored(std::forward<F>(function)));
      operations_ = &kHeapOperations<Stored>;
    }
  }

  // Leaves `other` empty.
  UniqueFunction(UniqueFunction&& other) noexcept { take(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~UniqueFunction() { reset(); }

  // Destroys the closure.
  void reset() {
    if (operations_) std::exchange(operations_, nullptr)->destroy(storage_);
  }
  // Does it hold a closure?
  explicit operator bool() const { return operations_ != nullptr; }

  // Calls the closure. There must be one (asserted).
  Result operator()(Args... args) {
    assert(operations_);
    return operations_->call(storage_, std::forward<Args>(args)...);
  }

 private:
  static constexpr std::size_t kInline = 64;

  struct Operations {
    Result (*call)(void*, Args&&...);
    void (*move)(void* to, void* from);
    void (*destroy)(void*);
  };

  template <class F>
  static constexpr Operations kInlineOperations = {
      [](void* f, Args&&... args) -> Result { return (*static_cast<F*>(f))(std::forward<Args>(args)...); },
      [](void* to, void* from) {
        new (to) F(std::move(*static_cast<F*>(from)));
        static_cast<F*>(from)->~F();
      },
      [](void* f) { static_cast<F*>(f)->~F(); }};

  template <class F>
  static constexpr Operations kHeapOperations = {
      [](void* f, Args&&... args) -> Result { return (**static_cast<F**>(f))(std::forward<Args>(args)...); },
      [](void* to, void* from) { new (to) F*(*static_cast<F**>(from)); }, [](void* f) { delete *static_cast<F**>(f); }};

  void take(UniqueFunction& other) {
    operations_ = std::exchange(other.operations_, nullptr);
    if (operations_) operations_->move(storage_, other.storage_);
  }

  alignas(std::max_align_t) std::byte storage_[kInline];
  const Operations* operations_ = nullptr;
};

}  // namespace paceline
