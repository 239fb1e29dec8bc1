// How `attention_decode` cuts its work: rows into parts, parts into strands, and the items that
// blocks take. Macros of the kernel: SPLITS.
#include "lib/attention.cuh"

constexpr int KEYS = 16, PAGES = 2;  // of a strand: keys a page, pages from one to the next
constexpr int WHOLE = 2;  // pairs of pages that are soonest walked by one block

// A row's keys [first, end) and how they are split: part s takes pages_each pages.
struct Span {
    int first, end, first_page, end_page, pages_each, parts;
};

// A warp's walk along a strand: its 16 keys of every second page of a part.
struct Walk {
    int pages;  // where the row's pages begin in the table
    int page, end_page;  // of this warp
    int local;  // its first key within a page
    int first, end;  // keys of the row
    int block;  // of the page in hand

    DEVICE bool done() const { return page >= end_page; }
    DEVICE bool seen(int offset) const {
        return (u32)(page * PAGE + local + offset - first) < (u32)(end - first);
    }
    DEVICE void find(const i32* table, int kv_head, int n_kv_heads) {
        if (!done()) block = (int)kv_block(__ldg(table + pages + page), kv_head, n_kv_heads);
    }

    // The walk without its page in hand.
    DEVICE Walk beyond(const i32* table, int kv_head, int n_kv_heads) const {
        Walk w = *this;
        w.page += PAGES;
        w.find(table, kv_head, n_kv_heads);
        return w;
    }
};

// A work item, and the warp's first walk.
struct Item {
    int row, part, tile, kv_head, head, heads;  // the first of its query heads, how many
    Span span;
    Walk walk;
    int newest;  // keys from this one on may be stored in this step, by others

    // The keys of its part, as far as there are so many.
    DEVICE int first_key() const {
        return (span.first_page + part * span.pages_each) * PAGE;
    }
    DEVICE int end_key() const { return first_key() + span.pages_each * PAGE; }

    // Whether the walk's first keys are that new.
    DEVICE bool ends_new() const {
        return !walk.done() && walk.page * PAGE + walk.local + KEYS > newest;
    }
};

// What finding items takes.
struct Plan {
    const i32* page_table;
    int rows, n_kv_heads, max_pages, window, new_keys;
};

DEVICE Span span_of(int position, int window) {
    Span s;
    s.end = position + 1;
    s.first = window > 0 && s.end > window ? s.end - window : 0;
    s.first_page = s.first / PAGE;
    s.end_page = position < 0 ? s.first_page : position / PAGE + 1;
    int pairs = (s.end_page - s.first_page + PAGES - 1) / PAGES;
    s.pages_each = pairs * PAGES, s.parts = pairs > 0;
    if (pairs > WHOLE) {
        u32 each = ((u32)pairs + SPLITS - 1) / SPLITS;  // pairs
        s.pages_each = each * PAGES, s.parts = ((u32)pairs + each - 1) / each;
    }
    return s;
}

DEVICE Walk walk_part(const Span& span, int part, int strand, int pages) {
    Walk w;
    w.pages = pages;
    w.local = strand * KEYS % PAGE;
    w.page = span.first_page + part * span.pages_each + strand * KEYS / PAGE;
    w.end_page = min(span.first_page + (part + 1) * span.pages_each,
                     min(span.end_page, (span.end - w.local + PAGE - 1) / PAGE));
    w.first = span.first;
    w.end = span.end;
    w.block = 0;
    if (w.page * PAGE + w.local + KEYS <= span.first) w.page += PAGES;  // below the window
    return w;
}
