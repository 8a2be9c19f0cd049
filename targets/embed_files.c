/* Build tool: writes a C file that holds the target files given, as the table of embedded_targets.h.
 *     embed_files OUT.c FILE.yaml...        (sorted by name) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const char *path) {
    fprintf(stderr, "embed_files: cannot %s %s\n", what, path);
    return 1;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int embed(FILE *out, const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in)
        return fail("read", path);
    const char *name = base_name(path);
    const char *dot = strrchr(name, '.');
    fprintf(out, "    {\"%.*s\",\n     \"", dot ? (int)(dot - name) : (int)strlen(name), name);
    size_t size = 0;
    for (int c; (c = getc(in)) != EOF; size++) {
        if (c == '\n')
            fputs("\\n\"\n     \"", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else
            fprintf(out, c < ' ' || c > '~' ? "\\%03o" : "%c", c);
    }
    fprintf(out, "\",\n     %zu},\n", size);
    int bad = ferror(in);
    fclose(in);
    return bad ? fail("read", path) : 0;
}

int main(int argc, char **argv) {
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    if (!out)
        return fail("write", argc > 1 ? argv[1] : "(no file named)");
    fputs("#include \"embedded_targets.h\"\n\nconst struct lathe_embedded_target lathe_embedded_targets[] = {\n", out);
    for (int i = 2; i < argc; i++)
        if (embed(out, argv[i]))
            return 1;
    fprintf(out, "};\nconst unsigned lathe_embedded_target_count = %d;\n", argc - 2);
    return fclose(out) ? fail("write", argv[1]) : 0;
}
