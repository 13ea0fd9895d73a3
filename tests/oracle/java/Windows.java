import java.util.LinkedHashMap;
import java.util.Map;

final class Windows {
    private Windows() { }

    static Map<String, Oracle.Twin> twins() {
        return new LinkedHashMap<>();
    }
}
