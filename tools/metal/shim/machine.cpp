// The machine on which kernels run: every thread of a threadgroup is a fiber, 32 of them a simdgroup. They meet at barriers
// and simd operations, in an order that the seed chooses. Kernels that were compiled with `-fsanitize=thread` report each
// load and store to the functions at the end, which look for what Metal leaves to chance: races between barriers,
// accesses outside the bound buffers, threadgroup memory read before it is written. This file is compiled without.
#include "kernel.h"
#include "machine.h"
#include "counting.h"
#include <sys/mman.h>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#ifndef __x86_64__
#error "fibers are switched by x86-64 assembly"
#endif

extern "C" void lily_switch(void** leave, void* enter);
asm(R"(
.text
.hidden lily_switch
.globl lily_switch
lily_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

// First and last byte of this library, where program-scope constants are.
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" const char _end[] __attribute__((visibility("hidden")));

namespace metal {
Kernel* Kernel::first = nullptr;
Constant* Constant::first = nullptr;
}

using namespace metal;

namespace {

constexpr uint SIMD = 32, THREADS = 1024;
constexpr std::size_t STACK = 64 << 10, MEMORY = 32 << 10, PAGE = 4096;

enum class State : uint8_t { ready, meeting, barrier, done };

struct Fiber {
    void* stack_pointer;
    char* stack;
    uint index;
    State state;
    Meeting meeting;
    int line;
    uint exchanges;
    // How many barriers that order threadgroup memory, device memory, and memory within the simdgroup lie behind it.
    uint memory_epoch, device_epoch, simd_epoch;
    uint lane() const { return index % SIMD; }
    uint simdgroup() const { return index / SIMD; }
};

struct Simdgroup {
    uint size, arrived, taking_part;
    alignas(64) unsigned char given[2][SIMD * 64];
};

// A thread at a time.
struct Moment {
    uint thread, group, epoch, simd_epoch;  // thread 0 is nobody
};

// What is known of one byte.
struct Cell {
    Moment writer, reader;
    const void* written_at;
    bool by_atomic, initialised;
    bool several_readers, several_simdgroups;
    uint8_t touched;
};

enum class Space { memory, device };

struct Region {
    const char* first;
    std::size_t bytes;
    Space space;
    bool writable;
    int index;
    std::vector<std::unique_ptr<Cell[]>> pages;
    Cell& cell(std::size_t at) {
        auto& page = pages[at / PAGE];
        if (!page) page.reset(new Cell[PAGE]());
        return page[at % PAGE];
    }
    std::string name() const { return space == Space::memory ? "threadgroup memory" : "buffer " + std::to_string(index); }
};

struct Slot {
    std::size_t at, bytes;
};

struct Machine {
    const LilyLaunch* launch;
    LilyCounts counts;
    void* report_to;
    LilyProblem report;
    bool fatal;
    void* scheduler;
    Fiber* running;
    void (*run)(const Place&);
    Place place;
    uint3 group;
    uint group_number, threads, simdgroups, alive, waiting;
    uint64_t random;
    std::vector<Region> regions;
    std::size_t memory_used;
    std::unordered_map<int, Slot> slots;
};

Machine machine;
Counting counting;
Fiber fibers[THREADS];
Simdgroup simdgroups[THREADS / SIMD];
char* stacks;
alignas(64) char memory[MEMORY];
void* buffers[LILY_BINDINGS];
void* memories[LILY_BINDINGS];

uint64_t next_random() {
    machine.random ^= machine.random << 13;
    machine.random ^= machine.random >> 7;
    machine.random ^= machine.random << 17;
    return machine.random;
}

void problem(const char* kind, int line, const std::string& text, bool fatal = false) {
    machine.counts.problems++;
    machine.fatal |= fatal;
    machine.report(machine.report_to, kind, line, text.c_str());
}

std::string address(const void* code) {
    char text[32];
    snprintf(text, sizeof text, "+%#zx", static_cast<std::size_t>(static_cast<const char*>(code) - __ehdr_start));
    return text;
}

// Where bindings of one buffer overlap, the one that begins last before the byte.
Region* region_of(const char* at) {
    for (auto& region : machine.regions)
        if (at >= region.first && at < region.first + region.bytes) return &region;
    return nullptr;
}

bool ordered(const Moment& before, const Moment& now, Space space) {
    if (before.thread == 0) return true;
    if (before.group != now.group) return space == Space::memory;  // which each threadgroup has for itself
    if (before.thread == now.thread || before.epoch != now.epoch) return true;
    return (before.thread - 1) / SIMD == (now.thread - 1) / SIMD && before.simd_epoch != now.simd_epoch;
}

// Whether this access meets one of another thread that nothing puts before it; records it.
bool races(Cell& cell, const Moment& now, bool write, bool atomic, Space space, const void* code) {
    bool race = !(atomic && cell.by_atomic) && !ordered(cell.writer, now, space);
    if (!write) {
        const Moment& last = cell.reader;
        const bool together = last.thread != 0 && last.group == now.group && last.epoch == now.epoch;
        if (together && last.thread != now.thread) {
            cell.several_readers = true;
            cell.several_simdgroups |= (last.thread - 1) / SIMD != (now.thread - 1) / SIMD;
        } else if (!together) {
            cell.several_readers = last.thread != 0 && last.group != now.group;
            cell.several_simdgroups = false;
        }
        cell.reader = now;
        return race;
    }
    race |= !ordered(cell.reader, now, space);
    if (cell.several_readers) {
        const bool other_group = cell.reader.group != now.group;
        const bool unordered = cell.reader.epoch == now.epoch && (cell.several_simdgroups || cell.reader.simd_epoch == now.simd_epoch);
        race |= other_group ? space == Space::device : unordered;
    }
    cell.writer = now;
    cell.by_atomic = atomic;
    cell.written_at = code;
    cell.initialised = true;
    cell.reader = Moment{};
    cell.several_readers = cell.several_simdgroups = false;
    return race;
}

void to_scheduler() {
    machine.counts.switches++;
    lily_switch(&machine.running->stack_pointer, machine.scheduler);
}

// `alignment` is what the code relies on.
void access(const void* pointer, std::size_t bytes, bool write, bool atomic, const void* code, int line, std::size_t alignment) {
    Fiber* me = machine.running;
    if (!me || !machine.launch->check) return;
    const char* at = static_cast<const char*>(pointer);
    machine.counts.accesses++;
    if (at >= stacks && at < stacks + THREADS * STACK) {
        if (at < me->stack || at >= me->stack + STACK) problem("private memory of another thread", line, address(code));
        return;
    }
    const char* verb = write ? "write" : "read";
    Region* region = region_of(at);
    if (!region) {
        if (!write && at >= __ehdr_start && at < _end) return;
        problem("out of bounds", line, std::string(verb) + " outside of every buffer, at " + address(code), true);
        to_scheduler();  // and never back
    }
    const std::size_t first = static_cast<std::size_t>(at - region->first);
    if (first + bytes > region->bytes) {
        problem("out of bounds", line, std::string(verb) + " past the end of " + region->name() + ", at " + address(code), true);
        to_scheduler();
    }
    if (counting.on && region->space == Space::device) {
        // Lines lie where the memory lies; copied bytes may lie anywhere.
        const std::size_t place = region->writable ? reinterpret_cast<std::size_t>(at) : first;
        counting.access(me->simdgroup(), me->lane(), code, line, region->index, write, place, bytes);
        if (atomic) counting.access(me->simdgroup(), me->lane(), code, line, region->index, false, place, bytes);
    }
    if (write && !region->writable) problem("write to constant memory", line, region->name() + ", at " + address(code));
    if (reinterpret_cast<std::size_t>(at) % alignment != 0) {
        problem("misaligned access", line, std::string(verb) + " of " + std::to_string(bytes) + " bytes of " + region->name() + ", at " + address(code), true);
        to_scheduler();
    }
    const bool shared = region->space == Space::memory;
    const Moment now{me->index + 1, machine.group_number, shared ? me->memory_epoch : me->device_epoch, me->simd_epoch};
    bool race = false, unwritten = false;
    const void* other = nullptr;
    for (std::size_t i = first; i < first + bytes; i++) {
        Cell& cell = region->cell(i);
        unwritten |= shared && !write && !cell.initialised;
        const void* earlier = cell.written_at;
        if (races(cell, now, write, atomic, region->space, code)) race = true, other = earlier;
        cell.touched |= static_cast<uint8_t>(atomic ? 3 : write ? 2 : 1);
    }
    if (unwritten) problem("uninitialised read", line, region->name() + ", at " + address(code));
    if (race) problem("race", line, region->name() + ": " + verb + " at " + address(code) + (other ? " against " + address(other) : ""));
}

[[noreturn]] void enter() {
    machine.run(machine.place);
    machine.running->state = State::done;
    machine.alive--;
    for (;;) to_scheduler();
}

void start(Fiber& fiber, uint index) {
    fiber = Fiber{};
    fiber.index = index;
    fiber.stack = stacks + index * STACK;
    void** top = reinterpret_cast<void**>(fiber.stack + STACK);
    *--top = nullptr;  // where `enter` would return to
    *--top = reinterpret_cast<void*>(enter);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    fiber.stack_pointer = top;
}

// Lets a simdgroup go on whose lanes have all met. Whether it did.
bool meet(uint number) {
    Simdgroup& group = simdgroups[number];
    if (group.arrived == 0) return false;
    Fiber *first = nullptr, *lanes = fibers + number * SIMD;
    uint bits = 0;
    for (uint lane = 0; lane < group.size; lane++) {
        Fiber& fiber = lanes[lane];
        if (fiber.state == State::ready) return false;
        if (fiber.state != State::meeting) continue;
        bits |= 1u << lane;
        if (!first) first = &fiber;
        if (fiber.line != first->line || fiber.meeting != first->meeting) {
            problem("divergent simd operation", fiber.line, "lanes of a simdgroup wait at lines " + std::to_string(first->line) + " and " + std::to_string(fiber.line), true);
            return true;
        }
    }
    if (group.arrived != group.size)
        problem("partial simd operation", first->line, std::to_string(group.arrived) + " of " + std::to_string(group.size) + " lanes take part");
    counting.met(number);
    group.taking_part = bits;
    group.arrived = 0;
    for (uint lane = 0; lane < group.size; lane++)
        if (lanes[lane].state == State::meeting) lanes[lane].state = State::ready;
    return true;
}

// Lets the threadgroup go on if all its threads are at the barrier. Whether it did.
bool pass_barrier() {
    if (machine.waiting == 0 || machine.waiting != machine.alive) return false;
    const Fiber* first = nullptr;
    for (uint i = 0; i < machine.threads; i++) {
        Fiber& fiber = fibers[i];
        if (fiber.state != State::barrier) continue;
        if (!first) first = &fiber;
        if (fiber.line != first->line)
            problem("divergent barrier", fiber.line, "threads wait at lines " + std::to_string(first->line) + " and " + std::to_string(fiber.line));
        fiber.state = State::ready;
    }
    if (machine.alive != machine.threads) problem("barrier after exit", first->line, "some threads have returned before this barrier");
    machine.waiting = 0;
    counting.all_met();
    return true;
}

void run_group() {
    for (uint i = 0; i < machine.threads; i++) start(fibers[i], i);
    for (uint i = 0; i < machine.simdgroups; i++) {
        simdgroups[i].arrived = 0;
        simdgroups[i].size = min(SIMD, machine.threads - i * SIMD);
    }
    machine.alive = machine.threads;
    machine.waiting = 0;
    static uint order[THREADS];
    for (uint i = 0; i < machine.threads; i++) order[i] = i;
    while (machine.alive > 0) {
        bool progress = false;
        if (machine.launch->seed)
            for (uint i = machine.threads - 1; i > 0; i--) std::swap(order[i], order[next_random() % (i + 1)]);
        for (uint i = 0; i < machine.threads; i++) {
            Fiber& fiber = fibers[order[i]];
            if (fiber.state != State::ready) continue;
            progress = true;
            machine.running = &fiber;
            lily_switch(&machine.scheduler, fiber.stack_pointer);
            machine.running = nullptr;
            if (machine.fatal) return;
        }
        for (uint i = 0; i < machine.simdgroups; i++) progress |= meet(i);
        progress |= pass_barrier();
        if (!progress) problem("deadlock", 0, "a barrier or simd operation that not every thread reaches", true);
        if (machine.fatal) return;
    }
}

// Threadgroup memory is never initialised, and looks like NaN.
void clear_memory() {
    memset(memory, 0xff, sizeof memory);
    machine.slots.clear();
    machine.memory_used = 0;
    for (auto& region : machine.regions)
        if (region.space == Space::memory)
            for (auto& page : region.pages) page.reset();
    for (std::size_t i = 0; i < machine.launch->memory_count; i++) {
        const LilyBytes& asked = machine.launch->memories[i];
        memories[asked.index] = memory + machine.memory_used;
        machine.memory_used += (asked.bytes + 15) & ~std::size_t(15);
    }
}

void add_region(const void* first, std::size_t bytes, Space space, bool writable, int index) {
    Region region{static_cast<const char*>(first), bytes, space, writable, index, {}};
    region.pages.resize((bytes + PAGE - 1) / PAGE);
    machine.regions.push_back(std::move(region));
}

void bind(const LilyLaunch& launch) {
    memset(buffers, 0, sizeof buffers);
    memset(memories, 0, sizeof memories);
    machine.regions.clear();
    add_region(memory, sizeof memory, Space::memory, true, 0);
    for (std::size_t i = 0; i < launch.binding_count; i++) {
        const LilyBinding& binding = launch.bindings[i];
        buffers[binding.index] = binding.at;
        add_region(binding.at, binding.bytes, Space::device, binding.writable != 0, binding.index);
    }
    std::stable_sort(machine.regions.begin(), machine.regions.end(), [](const Region& a, const Region& b) { return a.first > b.first; });
    for (Constant* c = Constant::first; c; c = c->next) {
        c->set = false;
        for (std::size_t i = 0; i < launch.constant_count; i++)
            if (launch.constants[i].index == c->index && launch.constants[i].bytes == c->bytes) {
                memcpy(c->at, launch.constants[i].at, c->bytes);
                c->set = true;
            }
    }
}

const Kernel* find(const char* name) {
    for (const Kernel* k = Kernel::first; k; k = k->next)
        if (!strcmp(k->name, name)) return k;
    return nullptr;
}

}  // namespace

namespace metal {

uint machine_thread() { return machine.running->index; }
uint machine_lane() { return machine.running->lane(); }
uint machine_taking_part() { return simdgroups[machine.running->simdgroup()].taking_part; }

void* machine_threadgroup_memory(int slot, std::size_t bytes) {
    auto known = machine.slots.find(slot);
    if (known != machine.slots.end()) return memory + known->second.at;
    const std::size_t at = machine.memory_used;
    machine.memory_used += (bytes + 15) & ~std::size_t(15);
    if (machine.memory_used > MEMORY) {
        problem("threadgroup memory", 0, std::to_string(machine.memory_used) + " bytes, more than 32 KiB", true);
        to_scheduler();
    }
    machine.slots[slot] = {at, bytes};
    return memory + at;
}

void machine_atomic(const void* at, int bytes, Atomic how, int line) {
    access(at, static_cast<std::size_t>(bytes), how != Atomic::load, how == Atomic::update, __builtin_return_address(0), line, static_cast<std::size_t>(bytes));
    // Now and then another thread comes first.
    if (machine.launch->seed && machine.running && next_random() % 8 == 0) to_scheduler();
}

const unsigned char* machine_exchange(Meeting what, int line, const void* mine, int bytes) {
    Fiber& me = *machine.running;
    Simdgroup& group = simdgroups[me.simdgroup()];
    // Two tables in turn: a lane may still read one while another already gives to the next.
    unsigned char* given = group.given[me.exchanges++ % 2];
    memcpy(given + 64 * me.lane(), mine, static_cast<std::size_t>(bytes));
    me.state = State::meeting;
    me.meeting = what;
    me.line = line;
    group.arrived++;
    to_scheduler();
    return given;
}

void machine_simdgroup_barrier(int flags, int line) {
    if (line == machine.launch->without_barrier) return;
    const char nothing = 0;
    machine_exchange(Meeting::barrier, line, &nothing, 1);
    if (flags) machine.running->simd_epoch++;
}

void machine_threadgroup_barrier(int flags, int line) {
    if (line == machine.launch->without_barrier) return;
    Fiber& me = *machine.running;
    me.state = State::barrier;
    me.line = line;
    machine.waiting++;
    to_scheduler();
    if (flags & int(mem_flags::mem_threadgroup)) me.memory_epoch++;
    if (flags & int(mem_flags::mem_device)) me.device_epoch++;
}

uint3 Place::attribute(Attribute what) const {
    const LilyLaunch& l = *machine.launch;
    const uint i = machine.running->index, w = l.threads[0], h = l.threads[1];
    const uint3 at(i % w, i / w % h, i / (w * h)), group = machine.group;
    const uint3 threads(w, h, l.threads[2]), groups(l.groups[0], l.groups[1], l.groups[2]);
    switch (what) {
        case Attribute::grid_position: return group * threads + at;
        case Attribute::position: return at;
        case Attribute::group_position: return group;
        case Attribute::index: return uint3(i);
        case Attribute::lane: return uint3(machine.running->lane());
        case Attribute::simdgroup: return uint3(machine.running->simdgroup());
        case Attribute::simdgroups: return uint3(machine.simdgroups);
        case Attribute::threads: return threads;
        case Attribute::groups: return groups;
        case Attribute::grid_threads: return groups * threads;
        case Attribute::width: return uint3(SIMD);
    }
    return uint3(0);
}

void machine_misaligned(const void* at, unsigned long bytes) {
    if (!machine.running || !machine.launch->check) return;
    Region* region = region_of(static_cast<const char*>(at));
    const std::string place = region ? region->name() : "private memory";
    problem("misaligned access", 0, "a vector of " + std::to_string(bytes) + " bytes of " + place + ", at " + address(__builtin_return_address(0)), true);
    to_scheduler();  // and never back
}

}  // namespace metal

// ---- what the host calls ----

extern "C" LilyCounts lily_launch(const LilyLaunch* launch, void* to, LilyProblem report, LilyTouched touched, LilyMoved moved) {
    machine.launch = launch;
    machine.report_to = to;
    machine.report = report;
    machine.counts = LilyCounts{};
    machine.fatal = false;
    machine.random = launch->seed * 0x9e3779b97f4a7c15ull + 1;
    machine.run = find(launch->kernel)->run;
    machine.threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
    machine.simdgroups = (machine.threads + SIMD - 1) / SIMD;
    if (!stacks) {
        void* mapped = mmap(nullptr, THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        stacks = static_cast<char*>(mapped);
    }
    bind(*launch);
    counting.begin(launch->check && launch->count, machine.simdgroups);
    machine.place = Place{buffers, memories};
    machine.group_number = 0;
    for (uint z = 0; z < launch->groups[2]; z++)
        for (uint y = 0; y < launch->groups[1]; y++)
            for (uint x = 0; x < launch->groups[0] && !machine.fatal; x++) {
                machine.group = uint3(x, y, z);
                machine.group_number++;
                clear_memory();
                run_group();
                counting.all_met();
            }
    machine.running = nullptr;
    for (auto& region : machine.regions) {
        if (region.space == Space::memory) continue;
        for (std::size_t page = 0; page < region.pages.size(); page++) {
            if (!region.pages[page]) continue;
            uint8_t bits[PAGE];
            for (std::size_t i = 0; i < PAGE; i++) bits[i] = region.pages[page][i].touched;
            touched(to, region.index, page * PAGE, bits, min(PAGE, region.bytes - page * PAGE));
        }
    }
    counting.tell(to, moved);
    return machine.counts;
}

// ---- what instrumented kernels call ----

#define HERE __builtin_return_address(0)
#define ACCESS(BYTES)                                                                           \
    void __tsan_read##BYTES(void* at) { access(at, BYTES, false, false, HERE, 0, BYTES); }             \
    void __tsan_write##BYTES(void* at) { access(at, BYTES, true, false, HERE, 0, BYTES); }             \
    void __tsan_unaligned_read##BYTES(void* at) { access(at, BYTES, false, false, HERE, 0, 1); }   \
    void __tsan_unaligned_write##BYTES(void* at) { access(at, BYTES, true, false, HERE, 0, 1); }
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void* at, std::size_t bytes) { access(at, bytes, false, false, HERE, 0, 1); }
void __tsan_write_range(void* at, std::size_t bytes) { access(at, bytes, true, false, HERE, 0, 1); }
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
    access(from, bytes, false, false, HERE, 0, 1);
    access(to, bytes, true, false, HERE, 0, 1);
    return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
    access(from, bytes, false, false, HERE, 0, 1);
    access(to, bytes, true, false, HERE, 0, 1);
    return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
    access(to, bytes, true, false, HERE, 0, 1);
    return memset(to, value, bytes);
}
}
