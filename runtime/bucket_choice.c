#include "bucket_choice.h"

/* Work of a whole bucket; sizes of a verified artifact do not overflow it. */
static int64_t work_of(const struct lathe_bucket_size *b) {
    return b->batch * (b->seq > 0 ? b->seq : 1);
}

static bool takes(const struct lathe_bucket_list *list, unsigned i, int64_t seq) {
    return list->exact ? list->at[i].seq == seq : list->at[i].seq >= seq;
}

int lathe_bucket_fit(const struct lathe_bucket_list *list, int64_t rows, int64_t seq) {
    int best = -1;
    for (unsigned i = 0; i < list->count; i++) /* the order breaks ties: the smaller length comes first */
        if (takes(list, i, seq) && list->at[i].batch >= rows &&
            (best < 0 || work_of(&list->at[i]) < work_of(&list->at[best])))
            best = (int)i;
    return best;
}

unsigned lathe_bucket_groups(const struct lathe_bucket_list *list) {
    unsigned groups = 0;
    for (unsigned i = 0; i < list->count; i++)
        groups += i == 0 || list->at[i].seq != list->at[i - 1].seq;
    return groups;
}

static unsigned first_of_group(const struct lathe_bucket_list *list, unsigned group) {
    unsigned i = 0;
    for (unsigned at = 0; at < group; at++)
        do
            i++;
        while (i < list->count && list->at[i].seq == list->at[i - 1].seq);
    return i;
}

int lathe_bucket_group(const struct lathe_bucket_list *list, int64_t seq) {
    int group = -1;
    for (unsigned i = 0; i < list->count; i++) {
        group += i == 0 || list->at[i].seq != list->at[i - 1].seq;
        if (takes(list, i, seq))
            return group;
    }
    return -1;
}

void lathe_bucket_split_make(const struct lathe_bucket_list *list, unsigned group, struct lathe_bucket_split *out) {
    int64_t work[LATHE_SPLIT_ROWS + 1] = {0};
    int32_t chunks[LATHE_SPLIT_ROWS + 1] = {0};
    unsigned first = first_of_group(list, group);
    int64_t seq = list->at[first].seq;
    out->first[0] = (uint8_t)first;
    out->bulk = (uint8_t)first;
    for (unsigned i = first; i < list->count && takes(list, i, seq); i++) {
        const struct lathe_bucket_size *b = &list->at[i], *bulk = &list->at[out->bulk];
        __extension__ typedef __int128 wide;
        wide mine = (wide)work_of(b) * bulk->batch, best = (wide)work_of(bulk) * b->batch;
        if (mine < best || (mine == best && b->batch > bulk->batch))
            out->bulk = (uint8_t)i;
    }
    for (int64_t n = 1; n <= LATHE_SPLIT_ROWS; n++) {
        bool found = false;
        for (unsigned i = first; i < list->count && takes(list, i, seq); i++) {
            int64_t batch = list->at[i].batch, left = n > batch ? n - batch : 0;
            int64_t w = work_of(&list->at[i]) + work[left];
            int32_t c = 1 + chunks[left];
            /* among equals the largest first chunk: what is left then never asks for a larger one */
            if (found &&
                (w > work[n] ||
                 (w == work[n] && (c > chunks[n] || (c == chunks[n] && batch <= list->at[out->first[n]].batch)))))
                continue;
            found = true;
            work[n] = w;
            chunks[n] = c;
            out->first[n] = (uint8_t)i;
        }
    }
}
