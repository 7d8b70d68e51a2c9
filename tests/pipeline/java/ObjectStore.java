import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Hadoop file system over the HTTP interface of S3, for tests only: hadoop-aws is not in pyspark's package.
 *
 * It behaves as an object store does: there are no folders, and a rename copies and deletes object by object.
 */
public class ObjectStore extends FileSystem {
    private static final Pattern KEY = Pattern.compile("<Key>([^<]*)</Key>.*?<Size>(\\d+)</Size>", Pattern.DOTALL);
    private static final Pattern NEXT = Pattern.compile("<NextContinuationToken>([^<]*)</NextContinuationToken>");
    // Servers for tests want a signature, and do not check it.
    private static final String SIGNED =
        "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x";
    private final HttpClient client = HttpClient.newHttpClient();
    private URI uri;
    private String base;

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setConf(conf);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        base = conf.get("fs.s3a.endpoint") + "/" + name.getAuthority();
    }

    @Override
    public String getScheme() {
        return "s3a";
    }

    @Override
    public URI getUri() {
        return uri;
    }

    private String key(Path path) {
        String text = makeQualified(path).toUri().getPath();
        return text.startsWith("/") ? text.substring(1) : text;
    }

    private static String encode(String key) {
        return URLEncoder.encode(key, StandardCharsets.UTF_8).replace("+", "%20").replace("%2F", "/");
    }

    private HttpResponse<byte[]> call(HttpRequest.Builder request) throws IOException {
        try {
            HttpRequest signed = request.header("Authorization", SIGNED).build();
            return client.send(signed, HttpResponse.BodyHandlers.ofByteArray());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        }
    }

    private HttpRequest.Builder request(String key) {
        return HttpRequest.newBuilder(URI.create(base + "/" + encode(key)));
    }

    private HttpResponse<byte[]> need(HttpRequest.Builder request, String what) throws IOException {
        HttpResponse<byte[]> answer = call(request);
        if (answer.statusCode() == 404) {
            throw new FileNotFoundException(what);
        }
        if (answer.statusCode() >= 300) {
            throw new IOException(what + ": HTTP " + answer.statusCode());
        }
        return answer;
    }

    private void put(String key, byte[] data) throws IOException {
        need(request(key).PUT(HttpRequest.BodyPublishers.ofByteArray(data)), key);
    }

    /** All objects whose key begins with a prefix, with their sizes. */
    private TreeMap<String, Long> objects(String prefix) throws IOException {
        TreeMap<String, Long> found = new TreeMap<>();
        String token = "";
        do {
            String query = "?list-type=2&encoding-type=url&prefix=" + encode(prefix).replace("/", "%2F") + token;
            String text = new String(
                need(HttpRequest.newBuilder(URI.create(base + query)), prefix).body(), StandardCharsets.UTF_8);
            for (Matcher match = KEY.matcher(text); match.find(); ) {
                found.put(URLDecoder.decode(match.group(1), StandardCharsets.UTF_8), Long.valueOf(match.group(2)));
            }
            Matcher next = NEXT.matcher(text);
            token = next.find()
                ? "&continuation-token=" + URLEncoder.encode(next.group(1), StandardCharsets.UTF_8) : "";
        } while (!token.isEmpty());
        return found;
    }

    @Override
    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        byte[] data = need(request(key(path)), path.toString()).body();
        return new FSDataInputStream(new Content(data));
    }

    @Override
    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int bufferSize,
            short replication, long blockSize, Progressable progress) throws IOException {
        String key = key(path);
        if (!overwrite && objects(key).containsKey(key)) {
            throw new FileAlreadyExistsException(path.toString());
        }
        return new FSDataOutputStream(new ByteArrayOutputStream() {
            private boolean closed;

            @Override
            public void close() throws IOException {
                if (!closed) {
                    closed = true;
                    put(key, toByteArray());
                }
            }
        }, null);
    }

    @Override
    public FSDataOutputStream append(Path path, int bufferSize, Progressable progress) {
        throw new UnsupportedOperationException("objects cannot grow");
    }

    @Override
    public boolean rename(Path source, Path target) throws IOException {
        FileStatus from = getFileStatus(source);
        String start = key(source);
        String end = key(exists(target) && getFileStatus(target).isDirectory()
            ? new Path(target, source.getName()) : target);
        for (String one : from.isFile() ? List.of(start) : new ArrayList<>(objects(start + "/").keySet())) {
            String copy = end + one.substring(start.length());
            String header = "/" + uri.getAuthority() + "/" + encode(one);
            need(request(copy).header("x-amz-copy-source", header).PUT(HttpRequest.BodyPublishers.noBody()), one);
            need(request(one).DELETE(), one);
        }
        return true;
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        String key = key(path);
        boolean any = false;
        for (String one : objects(key).keySet()) {
            if (one.equals(key) || one.startsWith(key + "/")) {
                need(request(one).DELETE(), one);
                any = true;
            }
        }
        return any;
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        FileStatus own = getFileStatus(path);
        if (own.isFile()) {
            return new FileStatus[] {own};
        }
        String start = key(path).isEmpty() ? "" : key(path) + "/";
        TreeMap<String, FileStatus> found = new TreeMap<>();
        for (var one : objects(start).entrySet()) {
            String rest = one.getKey().substring(start.length());
            int slash = rest.indexOf('/');
            if (rest.isEmpty()) {
                continue;
            }
            String name = slash < 0 ? rest : rest.substring(0, slash);
            Path child = makeQualified(new Path(path, name));
            found.put(name, slash < 0 ? file(child, one.getValue()) : folder(child));
        }
        return found.values().toArray(new FileStatus[0]);
    }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        String key = key(path);
        if (key.isEmpty()) {
            return folder(makeQualified(path));
        }
        TreeMap<String, Long> found = objects(key);
        if (found.containsKey(key)) {
            return file(makeQualified(path), found.get(key));
        }
        String inner = found.ceilingKey(key + "/");
        if (inner != null && inner.startsWith(key + "/")) {
            return folder(makeQualified(path));
        }
        throw new FileNotFoundException(path.toString());
    }

    private static FileStatus file(Path path, long size) {
        return new FileStatus(size, false, 1, 32 << 20, 1_700_000_000_000L, path);
    }

    private static FileStatus folder(Path path) {
        return new FileStatus(0, true, 1, 0, 0, path);
    }

    @Override
    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        put(key(path) + "/", new byte[0]);
        return true;
    }

    @Override
    public void setWorkingDirectory(Path path) {}

    @Override
    public Path getWorkingDirectory() {
        return new Path(uri.toString() + "/");
    }

    /** The bytes of an object. */
    private static final class Content extends FSInputStream {
        private final byte[] data;
        private int position;

        Content(byte[] data) {
            this.data = data;
        }

        @Override
        public int read() {
            return position < data.length ? data[position++] & 0xff : -1;
        }

        @Override
        public int read(byte[] buffer, int offset, int length) {
            if (length == 0) {
                return 0;
            }
            if (position >= data.length) {
                return -1;
            }
            int count = Math.min(length, data.length - position);
            System.arraycopy(data, position, buffer, offset, count);
            position += count;
            return count;
        }

        @Override
        public void seek(long to) throws IOException {
            if (to > data.length) {
                throw new EOFException();
            }
            position = (int) to;
        }

        @Override
        public long getPos() {
            return position;
        }

        @Override
        public boolean seekToNewSource(long target) {
            return false;
        }
    }
}
