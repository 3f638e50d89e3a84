/* `motley wireguard`: a WireGuard network through which machines exchange tensors that cannot connect to each
 * other. One of them, the hub, is reached by all; it forwards packets from one node to another and nowhere
 * else. What workers send is TLS between the two of them (common/tls.h), so the hub sees none of it.
 *
 * DIR/network.json keeps the network with its private keys. Each run changes that as it is asked, and writes
 * every node's configuration again from it alone, so a run that was cut off is repeated. */
#include "cli/cli.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/doc.h"
#include "common/document.h"
#include "common/file.h"

enum {
    KEY_BYTES = 32, /* of X25519 */
    KEY_CHARS = 45,
    NODES_MAX = 254, /* addresses of a /24 */
    FILE_BYTES_MAX = 256 << 10,
    PORT = 51820, /* that of WireGuard's own documentation */
    /* The outer IPv6, UDP and WireGuard headers. Over IPv4 they take 60. */
    HEADERS_BYTES = 80,
    /* With the default the tunnel's packets hold 1280 bytes: lines through PPPoE, DS-Lite or a mobile network
     * carry that, too. */
    PACKET_BYTES = 1360,
    PACKET_BYTES_MIN = 1280,
    PACKET_BYTES_MAX = 9000,
    KEEPALIVE_S = 25, /* less than the 30 s after which some routers forget a UDP flow */
    RULE = 31820      /* priority of the hub's routing rules: before the main table's, 32766 */
};

struct wireguard_node {
    char name[65], key[KEY_CHARS]; /* the private key in base64 */
    uint32_t number;               /* the last byte of its address */
};

struct wireguard {
    char hub[65], endpoint[300];
    char network[sizeof("255.255.255.0/24")];
    uint32_t packet_bytes, node_count;
    struct wireguard_node *nodes;
};

static const struct doc_field node_fields[] = {
    DOC_CHARS("name", wireguard_node, name, JR_REQUIRED, 1, ""),
    DOC_NUM("number", wireguard_node, number, JR_REQUIRED, 0, 1, NODES_MAX, ""),
    DOC_CHARS("key", wireguard_node, key, JR_REQUIRED, KEY_CHARS - 1, ""),
};
static const struct doc node_doc = DOC(wireguard_node, node_fields);

static const struct doc_field network_fields[] = {
    DOC_CHARS("hub", wireguard, hub, JR_REQUIRED, 1, ""),
    DOC_CHARS("endpoint", wireguard, endpoint, JR_REQUIRED, 1, ""),
    DOC_CHARS("network", wireguard, network, JR_REQUIRED, 1, ""),
    DOC_NUM("packet_bytes", wireguard, packet_bytes, JR_REQUIRED, 0, PACKET_BYTES_MIN, PACKET_BYTES_MAX, ""),
    DOC_STRUCTS("nodes", wireguard, nodes, node_count, JR_REQUIRED, 1, NODES_MAX, &node_doc, ""),
};
static const struct doc network_doc = DOC(wireguard, network_fields);

/* The network's address of a node, without a prefix length. */
static const char *address_of(const struct wireguard *net, const struct wireguard_node *node,
                              char text[INET_ADDRSTRLEN])
{
    const int base = (int)(strlen(net->network) - strlen("0/24"));
    snprintf(text, INET_ADDRSTRLEN, "%.*s%u", base, net->network, node->number);
    return text;
}

/* ---- keys ---- */

static void key_text(const unsigned char key[KEY_BYTES], char text[KEY_CHARS])
{
    EVP_EncodeBlock((unsigned char *)text, key, KEY_BYTES);
}

static int wireguard_key_make(char text[KEY_CHARS], struct err *err)
{
    unsigned char key[KEY_BYTES];
    size_t size = sizeof(key);
    EVP_PKEY *made = EVP_PKEY_Q_keygen(NULL, NULL, "X25519");
    const bool good = made && EVP_PKEY_get_raw_private_key(made, key, &size) == 1;
    EVP_PKEY_free(made);
    if (!good)
        return err_set(err, ERR_NOMEM, "could not make a key");
    key_text(key, text);
    OPENSSL_cleanse(key, sizeof(key));
    return 0;
}

static int key_public(const struct wireguard_node *node, char text[KEY_CHARS], struct err *err)
{
    unsigned char key[KEY_BYTES + 2]; /* with what EVP_DecodeBlock writes for the padding */
    size_t size = KEY_BYTES;
    EVP_PKEY *pair = NULL;
    if (EVP_DecodeBlock(key, (const unsigned char *)node->key, KEY_CHARS - 1) == KEY_BYTES + 1)
        pair = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, key, KEY_BYTES);
    const bool good = pair && EVP_PKEY_get_raw_public_key(pair, key, &size) == 1;
    EVP_PKEY_free(pair);
    if (good)
        key_text(key, text);
    OPENSSL_cleanse(key, sizeof(key));
    return good ? 0 : err_set(err, ERR_INVALID, "the key of node %s is no X25519 key", node->name);
}

/* ---- what the options ask for ---- */

static struct wireguard_node *wireguard_node_of(const struct wireguard *net, const char *name)
{
    for (uint32_t i = 0; i < net->node_count; i++)
        if (strcmp(net->nodes[i].name, name) == 0)
            return &net->nodes[i];
    return NULL;
}

/* Adds a node with the lowest free number, unless it is there. */
static int node_add(struct wireguard *net, const char *name, struct err *err)
{
    bool taken[NODES_MAX + 1] = {false};
    uint32_t number = 1;
    if (wireguard_node_of(net, name))
        return 0;
    if (strlen(name) > 64 || *name == '-' || *name == '\0' ||
        name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")] != '\0')
        return err_set(err, ERR_INVALID,
                       "\"%.80s\" is no node: 1 to 64 of a-z, 0-9 and -, not beginning with -", name);
    if (net->node_count == NODES_MAX)
        return err_set(err, ERR_INVALID, "the network %s has %d nodes already, as many as it has addresses",
                       net->network, NODES_MAX);
    for (uint32_t i = 0; i < net->node_count; i++)
        taken[net->nodes[i].number] = true;
    while (taken[number])
        number++;
    struct wireguard_node *node = &net->nodes[net->node_count];
    node->number = number;
    snprintf(node->name, sizeof(node->name), "%s", name);
    if (wireguard_key_make(node->key, err) < 0)
        return -1;
    net->node_count++;
    return 0;
}

static int node_remove(struct wireguard *net, const char *name, struct err *err)
{
    struct wireguard_node *node = wireguard_node_of(net, name);
    if (!node)
        return err_set(err, ERR_INVALID, "--remove: there is no node %.80s", name);
    if (strcmp(name, net->hub) == 0)
        return err_set(err, ERR_INVALID, "--remove: %s is the hub; name another one by --hub first", name);
    *node = net->nodes[--net->node_count];
    return 0;
}

/* Reads "HOST" or "HOST:PORT". */
static int endpoint_set(struct wireguard *net, const char *text, struct err *err)
{
    const char *colon = strrchr(text, ':'), *bracket = strrchr(text, ']');
    const bool port = colon && (!bracket || colon > bracket);
    char *end = NULL;
    if (*text == '\0' || colon == text || strlen(text) > sizeof(net->endpoint) - 8 ||
        strpbrk(text, " \t\r\n#=") || (!bracket && colon && strchr(text, ':') != colon) ||
        (port && (strtoul(colon + 1, &end, 10) - 1 >= 65535 || *end != '\0')))
        return err_set(err, ERR_INVALID,
                       "--endpoint: \"%.80s\" is no HOST or HOST:PORT; an IPv6 address goes in brackets",
                       text);
    snprintf(net->endpoint, sizeof(net->endpoint), port ? "%s" : "%s:%d", text, PORT);
    return 0;
}

static int network_set(struct wireguard *net, const char *text, struct err *err)
{
    struct in_addr address;
    char base[INET_ADDRSTRLEN];
    const char *slash = strchr(text, '/');
    const size_t size = slash ? (size_t)(slash - text) : 0;
    snprintf(base, sizeof(base), "%.*s", (int)(size < sizeof(base) ? size : 0), text);
    if (!slash || strcmp(slash, "/24") != 0 || inet_pton(AF_INET, base, &address) != 1 ||
        (ntohl(address.s_addr) & 0xff) != 0)
        return err_set(err, ERR_INVALID,
                       "--network: \"%.40s\" is not like 10.89.77.0/24, which ends in .0/24", text);
    snprintf(net->network, sizeof(net->network), "%s", text);
    return 0;
}

/* Changes the network as the command's words and options say. A new one has no hub yet. */
static int network_change(struct cli *cli, struct wireguard *net, struct err *err)
{
    int64_t packet_bytes;
    const char *hub = cli_option(cli, "--hub"), *endpoint = cli_option(cli, "--endpoint");
    const char *network = cli_option(cli, "--network"), *remove;
    if (!net->hub[0] && (!hub || !endpoint))
        return err_set(
            err, ERR_INVALID,
            "%s has no network yet: --hub NODE and --endpoint HOST[:PORT] name the machine that all "
            "reach",
            cli->words[0]);
    if ((endpoint && endpoint_set(net, endpoint, err) < 0) ||
        ((network || !net->network[0]) && network_set(net, network ? network : "10.89.77.0/24", err) < 0) ||
        cli_option_i64(cli, "--mtu", PACKET_BYTES_MIN, PACKET_BYTES_MAX,
                       net->packet_bytes ? net->packet_bytes : PACKET_BYTES, &packet_bytes, err) < 0 ||
        (hub && node_add(net, hub, err) < 0))
        return -1;
    net->packet_bytes = (uint32_t)packet_bytes;
    if (hub)
        snprintf(net->hub, sizeof(net->hub), "%s", hub);
    for (unsigned i = 1; i < cli->word_count; i++)
        if (node_add(net, cli->words[i], err) < 0)
            return -1;
    for (unsigned i = 0; (remove = cli_option_nth(cli, "--remove", i)); i++)
        if (node_remove(net, remove, err) < 0)
            return -1;
    return 0;
}

/* ---- files ---- */

static int peer_write(const struct wireguard *net, const struct wireguard_node *peer, struct buf *text,
                      struct err *err)
{
    char key[KEY_CHARS], address[INET_ADDRSTRLEN];
    if (key_public(peer, key, err) < 0)
        return -1;
    if (strcmp(peer->name, net->hub) != 0)
        return buf_printf(text, err, "\n[Peer]\n# %s\nPublicKey = %s\nAllowedIPs = %s/32\n", peer->name, key,
                          address_of(net, peer, address));
    return buf_printf(text, err,
                      "\n[Peer]\n# %s\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = %s\n"
                      "PersistentKeepalive = %d\n",
                      peer->name, key, net->endpoint, net->network, KEEPALIVE_S);
}

/* Writes what wg-quick reads on the node's machine. */
static int node_write(const struct wireguard *net, const struct wireguard_node *node, struct buf *text,
                      struct err *err)
{
    char address[INET_ADDRSTRLEN];
    const bool hub = strcmp(node->name, net->hub) == 0;
    if (buf_printf(text, err,
                   "# node %s; motley wireguard writes this file\n[Interface]\nPrivateKey = %s\n"
                   "Address = %s/24\nMTU = %u\n",
                   node->name, node->key, address_of(net, node, address),
                   net->packet_bytes - HEADERS_BYTES) < 0)
        return -1;
    if (!hub)
        return peer_write(net, wireguard_node_of(net, net->hub), text, err);
    if (buf_printf(text, err,
                   "ListenPort = %s\n# Packets go from one node to another, and from none to anywhere else.\n"
                   "PostUp = sysctl -q -w net/ipv4/conf/%%i/forwarding=1\n"
                   "PostUp = ip rule add pref %d iif %%i to %s lookup main\n"
                   "PostUp = ip rule add pref %d iif %%i prohibit\n"
                   "PreDown = ip rule del pref %d; ip rule del pref %d\n",
                   strrchr(net->endpoint, ':') + 1, RULE, net->network, RULE + 1, RULE, RULE + 1) < 0)
        return -1;
    for (uint32_t i = 0; i < net->node_count; i++)
        if (&net->nodes[i] != node && peer_write(net, &net->nodes[i], text, err) < 0)
            return -1;
    return 0;
}

/* Writes the node's file unless it is that already, and adds a row about it. */
static int node_save(const struct wireguard *net, const struct wireguard_node *node, const char *dir,
                     json_t *rows, struct err *err)
{
    char path[4096], address[INET_ADDRSTRLEN];
    struct err none;
    struct buf text = {.limit = FILE_BYTES_MAX}, before = {.limit = FILE_BYTES_MAX};
    int result = file_path(path, sizeof(path), err, "%s/%s.conf", dir, node->name);
    if (result == 0)
        result = node_write(net, node, &text, err);
    const bool there = result == 0 && file_read_all(path, FILE_BYTES_MAX, &before, &none) == 0;
    const bool same = there && before.size == text.size && memcmp(before.data, text.data, text.size) == 0;
    if (result == 0 && !same)
        result = file_write_atomic(path, text.data, text.size, 0600, err);
    if (result == 0)
        json_array_append_new(rows, json_pack("{s:s,s:s,s:s,s:s}", "node", node->name, "address",
                                              address_of(net, node, address), "file", path, "state",
                                              same    ? "as before"
                                              : there ? "changed"
                                                      : "new"));
    buf_fini(&text);
    buf_fini(&before);
    return result;
}

/* Reads the network of a folder; a folder without one gives an empty one. Room for all nodes is made. */
static int network_load(const char *path, struct wireguard *net, struct err *err)
{
    json_t *document = file_exists(path) ? document_load(path, FILE_BYTES_MAX, err) : NULL;
    if (file_exists(path) && (!document || doc_read(&network_doc, document, "", net, err) < 0)) {
        json_decref(document);
        return err_wrap(err, "%s", path);
    }
    json_decref(document);
    struct wireguard_node *room = realloc(net->nodes, NODES_MAX * sizeof(*room));
    if (!room)
        return err_set(err, ERR_NOMEM, "no memory for a network");
    net->nodes = room;
    return !net->hub[0] || wireguard_node_of(net, net->hub)
               ? 0
               : err_set(err, ERR_INVALID, "%s: the hub is no node", path);
}

static int network_save(struct cli *cli, const struct wireguard *net, const char *path, json_t *rows,
                        struct err *err)
{
    char gone[4096];
    const char *remove;
    json_t *document = doc_write(&network_doc, net, err);
    int result = document ? file_mkdirs(cli->words[0], 0700, err) : -1;
    if (result == 0)
        result = document_save(path, document, false, 0600, err);
    json_decref(document);
    for (uint32_t i = 0; result == 0 && i < net->node_count; i++)
        result = node_save(net, &net->nodes[i], cli->words[0], rows, err);
    for (unsigned i = 0; result == 0 && (remove = cli_option_nth(cli, "--remove", i)); i++)
        if (file_path(gone, sizeof(gone), err, "%s/%s.conf", cli->words[0], remove) < 0 ||
            file_remove_tree(gone, err) < 0)
            result = -1;
    return result;
}

int command_wireguard(struct cli *cli, struct err *err)
{
    char path[4096];
    struct wireguard net = {.node_count = 0};
    json_t *answer = json_pack("{s:[]}", "nodes"), *rows = json_object_get(answer, "nodes");
    int result = answer ? file_path(path, sizeof(path), err, "%s/network.json", cli->words[0])
                        : err_set(err, ERR_NOMEM, "no memory for an answer");
    if (result == 0 && (network_load(path, &net, err) < 0 || network_change(cli, &net, err) < 0 ||
                        network_save(cli, &net, path, rows, err) < 0))
        result = -1;
    if (result == 0)
        result = cli->json ? show_json(answer, err)
                           : show_table(rows, "NODE:node:s ADDRESS:address:s FILE:file:s STATE:state:s", err);
    if (result == 0 && !cli->json)
        printf("Each file goes to its own machine as /etc/wireguard/motley.conf, readable by root alone: it "
               "holds the private key. Then: systemctl enable --now wg-quick@motley\n");
    json_decref(answer);
    if (net.nodes)
        OPENSSL_cleanse(net.nodes, NODES_MAX * sizeof(*net.nodes));
    free(net.nodes);
    return result;
}
