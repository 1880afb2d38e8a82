// What a launch moves between a binding and its threads. A simdgroup's load is what its lanes read by one instruction,
// each for the n-th time since they last met (at a simd operation or a barrier); it costs the lines that they touch.
#pragma once
#include "machine.h"
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

constexpr std::size_t LILY_LINE = 128, LILY_LANES = 32;

class Counting {
    // The lines of each time, of one instruction and binding.
    struct Site {
        LilyTraffic* to;
        bool active;
        uint32_t times[LILY_LANES];
        std::vector<std::vector<std::size_t>> lines;
    };
    struct Group {
        std::unordered_map<uint64_t, Site> sites;
        std::vector<Site*> active;
    };
    std::vector<Group> groups;
    // By binding and direction.
    LilyTraffic traffic[LILY_BINDINGS][2];

public:
    bool on = false;

    void begin(bool count, std::size_t simdgroups) {
        on = count;
        groups.clear();
        if (on) groups.resize(simdgroups);
        std::memset(traffic, 0, sizeof traffic);
    }

    // `at` is a byte's place on which lines are laid.
    void access(std::size_t simdgroup, std::size_t lane, const void* code, int line, int binding, bool write, std::size_t at, std::size_t bytes) {
        Group& group = groups[simdgroup];
        const uint64_t place = reinterpret_cast<uint64_t>(code) << 8 ^ static_cast<uint64_t>(line) << 56;
        Site& site = group.sites[place | static_cast<uint64_t>(binding) << 1 | (write ? 1 : 0)];
        if (!site.active) {
            site.active = true;
            site.to = &traffic[binding][write];
            group.active.push_back(&site);
        }
        site.to->bytes += bytes;
        const std::size_t time = site.times[lane]++;
        if (site.lines.size() <= time) site.lines.resize(time + 1);
        auto& lines = site.lines[time];
        for (std::size_t n = at / LILY_LINE; n <= (at + bytes - 1) / LILY_LINE; n++)
            if (std::find(lines.begin(), lines.end(), n) == lines.end()) lines.push_back(n);
    }

    // The lanes of a simdgroup have met, or are done.
    void met(std::size_t simdgroup) {
        if (!on) return;
        for (Site* site : groups[simdgroup].active) {
            for (const auto& lines : site->lines) site->to->simdgroups++, site->to->lines += lines.size();
            site->lines.clear();
            std::memset(site->times, 0, sizeof site->times);
            site->active = false;
        }
        groups[simdgroup].active.clear();
    }

    void all_met() {
        for (std::size_t i = 0; i < groups.size(); i++) met(i);
    }

    void tell(void* to, LilyMoved moved) const {
        for (int binding = 0; on && binding < LILY_BINDINGS; binding++)
            if (traffic[binding][0].simdgroups + traffic[binding][1].simdgroups > 0) moved(to, binding, &traffic[binding][0], &traffic[binding][1]);
    }
};
