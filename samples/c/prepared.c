#include "prepared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void stop(const char *path, size_t line, const char *why) {
    fprintf(stderr, "%s:%zu: %s\n", path, line, why);
    exit(3);
}

static void *must(void *p) {
    if (!p) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return p;
}

static size_t words(const char *s) {
    size_t n = *s != '\0';
    for (; *s; s++)
        n += *s == ' ';
    return n;
}

static struct sentence parse(char *line, const char *path, size_t number) {
    struct sentence s = {0};
    char *field[4] = {line};
    for (int i = 1; i < 4; i++) {
        char *tab = strchr(field[i - 1], '\t');
        if (!tab)
            stop(path, number, "four fields separated by tabs are expected");
        *tab = '\0';
        field[i] = tab + 1;
    }
    s.rated = strcmp(field[0], "-") != 0;
    s.rating = s.rated ? strtod(field[0], NULL) : 0;
    s.count = words(field[1]);
    s.ids = must(calloc(s.count + 1, sizeof *s.ids));
    char *p = field[1];
    for (size_t i = 0; i < s.count; i++)
        s.ids[i] = strtoll(p, &p, 10);
    if (strcmp(field[2], "-") != 0) {
        if (words(field[2]) != s.count)
            stop(path, number, "as many spans as ids are expected");
        s.begin = must(calloc(s.count + 1, sizeof *s.begin));
        s.end = must(calloc(s.count + 1, sizeof *s.end));
        p = field[2];
        for (size_t i = 0; i < s.count; i++) {
            s.begin[i] = (int)strtol(p, &p, 10);
            s.end[i] = (int)strtol(p + 1, &p, 10);
        }
    }
    s.text = must(strdup(field[3]));
    return s;
}

struct prepared prepared_read(const char *path) {
    struct prepared p = {0};
    FILE *f = fopen(path, "r");
    if (!f)
        stop(path, 0, "cannot be opened");
    char *line = NULL;
    size_t room = 0, number = 0;
    for (ssize_t n; (n = getline(&line, &room, f)) > 0;) {
        number++;
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        p.list = must(realloc(p.list, (p.count + 1) * sizeof *p.list));
        p.list[p.count] = parse(line, path, number);
        if (p.list[p.count].count > p.longest)
            p.longest = p.list[p.count].count;
        p.count++;
    }
    free(line);
    fclose(f);
    if (p.count == 0)
        stop(path, 0, "holds no sentence");
    return p;
}

void prepared_free(struct prepared *p) {
    for (size_t i = 0; i < p->count; i++) {
        free(p->list[i].ids);
        free(p->list[i].begin);
        free(p->list[i].end);
        free(p->list[i].text);
    }
    free(p->list);
    *p = (struct prepared){0};
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
